package corpus

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/query"
)

// Figure is what searches of one kind took.
type Figure struct {
	Kind   string  `json:"kind"`
	Count  int     `json:"count"`
	P50    float64 `json:"p50_ms"`
	P99    float64 `json:"p99_ms"`
	Most   float64 `json:"max_ms"`
	Failed int     `json:"failed"`
	Hits   float64 `json:"mean_hits"`
}

// Report is a measurement.
type Report struct {
	Documents int64    `json:"documents"`
	Clients   int      `json:"clients"`
	Search    []Figure `json:"search"`
	Facets    []Figure `json:"facets"`
}

// sample is one search that was made.
type sample struct {
	kind string
	took time.Duration
	hits int64
	err  error
}

// Measure makes searches, and counts their facets, by so many clients at a time, and tells what they took by kind; "all" is
// all of them. The first error ends it.
func Measure(ctx context.Context, s *query.Searcher, searches []Search, clients int) (*Report, error) {
	total, _ := s.Count(ctx)
	r := &Report{Documents: total, Clients: clients}
	var err error
	if r.Search, err = run(ctx, searches, clients, func(ctx context.Context, q Search) (int64, error) {
		res, err := s.Search(ctx, &wigglev1.SearchRequest{Query: q.Query, Filter: q.Filter})
		return int64(len(res.GetHits())), err
	}); err != nil {
		return nil, err
	}
	r.Facets, err = run(ctx, searches, clients, func(ctx context.Context, q Search) (int64, error) {
		res, err := s.CountFacets(ctx, &wigglev1.CountFacetsRequest{Query: q.Query, Filter: q.Filter})
		return res.GetTotal(), err
	})
	return r, err
}

func run(ctx context.Context, searches []Search, clients int, do func(context.Context, Search) (int64, error)) ([]Figure, error) {
	work := make(chan Search)
	var mu sync.Mutex
	var samples []sample
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for q := range work {
				began := time.Now()
				hits, err := do(ctx, q)
				took := time.Since(began)
				mu.Lock()
				samples = append(samples, sample{q.Kind, took, hits, err})
				mu.Unlock()
			}
		})
	}
	for _, q := range searches {
		work <- q
	}
	close(work)
	wg.Wait()
	return figures(samples), ctx.Err()
}

func figures(samples []sample) []Figure {
	var kinds []string
	byKind := map[string][]sample{"all": samples}
	for _, s := range samples {
		if byKind[s.kind] == nil {
			kinds = append(kinds, s.kind)
		}
		byKind[s.kind] = append(byKind[s.kind], s)
	}
	slices.Sort(kinds)
	list := make([]Figure, 0, len(kinds)+1)
	for _, kind := range append([]string{"all"}, kinds...) {
		list = append(list, figure(kind, byKind[kind]))
	}
	return list
}

func figure(kind string, samples []sample) Figure {
	f := Figure{Kind: kind, Count: len(samples)}
	took := make([]time.Duration, 0, len(samples))
	for _, s := range samples {
		took = append(took, s.took)
		f.Hits += float64(s.hits) / float64(len(samples))
		if s.err != nil {
			f.Failed++
		}
	}
	slices.Sort(took)
	at := func(q float64) float64 {
		if len(took) == 0 {
			return 0
		}
		return float64(took[min(int(q*float64(len(took))), len(took)-1)].Microseconds()) / 1000
	}
	f.P50, f.P99, f.Most = at(0.5), at(0.99), at(1)
	return f
}

// String is the report as a table.
func (r *Report) String() string {
	out := fmt.Sprintf("%d documents, %d clients\n", r.Documents, r.Clients)
	for _, part := range []struct {
		name    string
		figures []Figure
	}{{"search", r.Search}, {"facets", r.Facets}} {
		out += fmt.Sprintf("%-32s %6s %9s %9s %9s %7s %12s\n", part.name, "count", "p50 ms", "p99 ms", "max ms", "failed", "mean hits")
		for _, f := range part.figures {
			out += fmt.Sprintf("  %-30s %6d %9.1f %9.1f %9.1f %7d %12.1f\n", f.Kind, f.Count, f.P50, f.P99, f.Most, f.Failed, f.Hits)
		}
	}
	return out
}
