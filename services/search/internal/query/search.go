package query

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/index"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
)

const (
	defaultPage = 20
	maxPage     = 100
	// maxNodes bounds the words and operators of a query: ranking costs by them.
	maxNodes = 64
	// maxRounds bounds how many rounds one page takes. What is left is for the next.
	maxRounds = 4
	// maxFacets bounds the workflows that facets tell.
	maxFacets = 100
)

// Searcher answers searches.
type Searcher struct {
	shards []*index.Shard
	log    *slog.Logger
}

// New makes a searcher over shards, at most [MaxShards].
func New(shards []*index.Shard, log *slog.Logger) *Searcher {
	return &Searcher{shards: shards, log: log}
}

func (s *Searcher) call(policy wigglev1.MissingShards) *call {
	return &call{shards: s.shards, policy: policy, log: s.log, failed: map[int]error{}}
}

// query reads what is searched for; nil if that is text without a word, which nothing matches. The words are read by the
// first shard that answers: all read them in the same way.
func (s *Searcher) query(ctx context.Context, c *call, text string, f *wigglev1.SearchFilter) (*searchstore.Query, error) {
	filter, err := filterOf(ctx, f)
	if err != nil {
		return nil, err
	}
	q := &searchstore.Query{Filter: filter}
	if strings.TrimSpace(text) == "" {
		return q, nil
	}
	var unreadable error
	for _, shard := range c.shards {
		only := func(id int) bool { return id == shard.ID }
		answers := over(ctx, c, only, func(ctx context.Context, sh *index.Shard) (searchstore.Words, error) {
			words, err := sh.Store.Parse(ctx, text)
			if errors.Is(err, searchstore.ErrUnreadable) {
				unreadable = faults.InvalidArgument("the query cannot be read: it has too many signs between its words").WithCause(err)
				return words, nil
			}
			return words, err
		})
		if unreadable != nil {
			return nil, unreadable
		}
		if words, ok := answers[shard.ID]; ok {
			if words.Query == "" {
				return nil, nil //nolint:nilnil // as said
			}
			q.Words = words
			break
		}
	}
	if q.Words.Nodes > maxNodes {
		return nil, faults.InvalidArgument("the query has %d words and operators between them, at most %d are allowed",
			q.Words.Nodes, maxNodes)
	}
	return q, nil
}

// found is a hit and where it was found.
type found struct {
	searchstore.Hit

	on int
}

// Search finds instances.
func (s *Searcher) Search(ctx context.Context, req *wigglev1.SearchRequest) (*wigglev1.SearchResponse, error) {
	c := s.call(req.GetMissingShards())
	hash, err := searchHash(req, namespaceOf(req.GetFilter()))
	if err != nil {
		return nil, faults.Internal(err)
	}
	var from *place
	if req.GetPageToken() != "" {
		if from, err = decode(req.GetPageToken(), hash); err != nil {
			return nil, faults.InvalidArgument("%v", err)
		}
	}
	q, err := s.query(ctx, c, req.GetQuery(), req.GetFilter())
	if err != nil {
		return nil, err
	}
	if q == nil {
		return &wigglev1.SearchResponse{Shards: c.outcomes(ctx, none)}, c.err(ctx)
	}
	if from != nil && (from.windows != nil) != q.Words.Ranked && len(c.failed) == 0 {
		return nil, faults.InvalidArgument("%v", errMalformed)
	}
	size := defaultPage
	if req.GetPageSize() > 0 {
		size = min(int(req.GetPageSize()), maxPage)
	}
	var hits []found
	var next *place
	if q.Words.Ranked {
		hits, next = c.ranked(ctx, q, from, size)
	} else {
		hits, next = c.newest(ctx, q, from, size)
	}
	texts := c.texts(ctx, q, hits)
	if err := c.err(ctx); err != nil {
		return nil, err
	}
	res := &wigglev1.SearchResponse{}
	counts := map[int]int64{}
	for i := range hits {
		if c.failed[hits[i].on] != nil { // while its texts were read
			continue
		}
		counts[hits[i].on]++
		res.Hits = append(res.Hits, hitProto(&hits[i].Hit, texts[hits[i].Key]))
	}
	if next != nil {
		next.hash = hash
		res.NextPageToken = next.encode()
	}
	res.Shards = c.outcomes(ctx, func(shard int) int64 { return counts[shard] })
	return res, nil
}

func hitProto(h *searchstore.Hit, t searchstore.Texts) *wigglev1.SearchHit {
	out := &wigglev1.SearchHit{
		InstanceId: h.Key.String(), Namespace: h.Namespace, Workflow: h.Workflow, Version: h.Version,
		State: wigglev1.InstanceState(h.State), Priority: int32(h.Priority), CreatedAt: timestamppb.New(h.CreatedAt),
		Snippets: t.Snippets, Rank: float64(h.Rank), Failure: t.Failure,
	}
	if !h.EndedAt.IsZero() {
		out.EndedAt = timestamppb.New(h.EndedAt)
	}
	return out
}

// texts reads what the page shows of its hits.
func (c *call) texts(ctx context.Context, q *searchstore.Query, hits []found) map[document.Key]searchstore.Texts {
	keys := map[int][]document.Key{}
	for i := range hits {
		keys[hits[i].on] = append(keys[hits[i].on], hits[i].Key)
	}
	answers := over(ctx, c, func(shard int) bool { return keys[shard] != nil },
		func(ctx context.Context, s *index.Shard) (map[document.Key]searchstore.Texts, error) {
			return s.Store.Texts(ctx, q.Words, keys[s.ID])
		})
	texts := map[document.Key]searchstore.Texts{}
	for _, answer := range answers {
		maps.Copy(texts, answer)
	}
	return texts
}

// newest lists by time.
func (c *call) newest(ctx context.Context, q *searchstore.Query, from *place, size int) ([]found, *place) {
	var after *searchstore.Position
	if from != nil {
		after = from.after
	}
	answers := over(ctx, c, all, func(ctx context.Context, s *index.Shard) ([]searchstore.Hit, error) {
		return s.Store.List(ctx, q, after, size+1)
	})
	hits := merge(answers)
	if len(hits) <= size {
		return hits, nil
	}
	last := hits[size-1].Position()
	return hits[:size], &place{after: &last}
}

// page is what a shard has of a round.
type page struct {
	hits   []searchstore.Hit
	window searchstore.Window
}

// ranked lists the best first, round by round.
func (c *call) ranked(ctx context.Context, q *searchstore.Query, from *place, size int) ([]found, *place) {
	at := &place{windows: map[int]searchstore.Window{}}
	if from != nil {
		at = from
	} else {
		for _, shard := range c.shards {
			at.windows[shard.ID] = searchstore.Window{}
		}
	}
	var hits []found
	for range maxRounds {
		room := size - len(hits)
		answers := over(ctx, c, func(shard int) bool { _, more := at.windows[shard]; return more },
			func(ctx context.Context, s *index.Shard) (page, error) {
				list, window, err := s.Store.Rank(ctx, q, at.windows[s.ID], at.after, room+1)
				return page{list, window}, err
			})
		lists := make(map[int][]searchstore.Hit, len(answers))
		at = &place{windows: map[int]searchstore.Window{}}
		for shard, p := range answers {
			lists[shard], at.windows[shard] = p.hits, p.window
		}
		merged := merge(lists)
		if len(merged) > room {
			hits = append(hits, merged[:room]...)
			last := merged[room-1].Position()
			at.after = &last
			return hits, at
		}
		hits = append(hits, merged...)
		for shard, window := range at.windows {
			if window.Lower.IsZero() {
				delete(at.windows, shard)
				continue
			}
			at.windows[shard] = searchstore.Window{Upper: window.Lower}
		}
		if len(at.windows) == 0 {
			return hits, nil
		}
		if len(hits) == size {
			break
		}
	}
	return hits, at
}

// merge puts the hits of shards into one order. A document that is on two shards counts once, as the newer is.
func merge(lists map[int][]searchstore.Hit) []found {
	newest := map[document.Key]found{}
	for shard, list := range lists {
		for _, h := range list {
			if has, ok := newest[h.Key]; !ok || has.Revision < h.Revision {
				newest[h.Key] = found{h, shard}
			}
		}
	}
	return slices.SortedFunc(maps.Values(newest), func(a, b found) int {
		return cmp.Or(cmp.Compare(b.Rank, a.Rank), b.CreatedAt.Compare(a.CreatedAt), bytes.Compare(b.ULID[:], a.ULID[:]))
	})
}

// CountFacets counts what a search finds.
func (s *Searcher) CountFacets(ctx context.Context, req *wigglev1.CountFacetsRequest) (*wigglev1.CountFacetsResponse, error) {
	c := s.call(req.GetMissingShards())
	q, err := s.query(ctx, c, req.GetQuery(), req.GetFilter())
	if err != nil {
		return nil, err
	}
	if q == nil {
		return &wigglev1.CountFacetsResponse{Shards: c.outcomes(ctx, none)}, c.err(ctx)
	}
	answers := over(ctx, c, all, func(ctx context.Context, s *index.Shard) (searchstore.Facets, error) {
		return s.Store.Facets(ctx, q)
	})
	if err := c.err(ctx); err != nil {
		return nil, err
	}
	res := &wigglev1.CountFacetsResponse{}
	workflows, states, shards := map[string]int64{}, map[wigglev1.InstanceState]int64{}, map[int]int64{}
	for shard, facets := range answers {
		res.Estimated = res.GetEstimated() || facets.Estimated
		for _, f := range facets.List {
			res.Total += f.Count
			shards[shard] += f.Count
			workflows[f.Workflow] += f.Count
			states[wigglev1.InstanceState(f.State)] += f.Count
		}
	}
	for name, n := range workflows {
		res.ByWorkflow = append(res.ByWorkflow, &wigglev1.WorkflowCount{Workflow: name, Count: n})
	}
	slices.SortFunc(res.GetByWorkflow(), func(a, b *wigglev1.WorkflowCount) int {
		return cmp.Or(cmp.Compare(b.GetCount(), a.GetCount()), cmp.Compare(a.GetWorkflow(), b.GetWorkflow()))
	})
	res.ByWorkflow = res.GetByWorkflow()[:min(len(res.GetByWorkflow()), maxFacets)]
	for _, state := range slices.Sorted(maps.Keys(states)) {
		res.ByState = append(res.ByState, &wigglev1.StateCount{State: state, Count: states[state]})
	}
	res.Shards = c.outcomes(ctx, func(shard int) int64 { return shards[shard] })
	return res, nil
}

// Count is how many documents there are, over the shards that answer.
func (s *Searcher) Count(ctx context.Context) (int64, []*wigglev1.ShardOutcome) {
	c := s.call(wigglev1.MissingShards_MISSING_SHARDS_PARTIAL)
	answers := over(ctx, c, all, func(ctx context.Context, s *index.Shard) (int64, error) { return s.Store.Count(ctx) })
	total := int64(0)
	for _, n := range answers {
		total += n
	}
	return total, c.outcomes(ctx, func(shard int) int64 { return answers[shard] })
}
