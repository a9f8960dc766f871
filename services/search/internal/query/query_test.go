package query_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/index"
	"github.com/wiggle-run/wiggle/services/search/internal/query"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
	"github.com/wiggle-run/wiggle/services/search/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	failing = wigglev1.MissingShards_MISSING_SHARDS_FAIL
	partial = wigglev1.MissingShards_MISSING_SHARDS_PARTIAL
)

// scene is an index of some search shards, 20, 21 and so on.
type scene struct {
	testing.TB

	*query.Searcher

	index *index.Index
	down  []*atomic.Bool
}

func newScene(t testing.TB, shards int) *scene {
	t.Helper()
	s := &scene{TB: t}
	var parts []*index.Shard
	for i := range shards {
		url := pgtest.NewDatabaseFrom(t, "search "+migrations.Checksum(), func(ctx context.Context, url string) error {
			pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "template", URL: url})
			if err != nil {
				return err
			}
			defer pool.Close()
			_, err = postgres.Migrate(ctx, pool, migrations.Set(), postgres.Apply)
			return err
		})
		down := &atomic.Bool{}
		s.down = append(s.down, down)
		parts = append(parts, &index.Shard{
			ID: 20 + i, Store: searchstore.New(pgtest.OpenPool(t, url, searchstore.Configure), "simple"),
			Ready: func() bool { return !down.Load() },
		})
	}
	var err error
	if s.index, err = index.New(parts); err != nil {
		t.Fatal(err)
	}
	s.Searcher = query.New(parts, slog.New(slog.DiscardHandler))
	return s
}

var start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func idOf(n int) string {
	key := document.Key{Shard: n % 2}
	binary.BigEndian.PutUint64(key.ULID[8:], uint64(n))
	return key.String()
}

// put writes the n-th instance, started n seconds after the start.
func (s *scene) put(n int, context string, change ...func(*wigglev1.Instance)) {
	s.Helper()
	in := &wigglev1.Instance{
		Id: idOf(n), Namespace: "default", Workflow: "order", Version: 1, Revision: 1, Priority: 5,
		State:   wigglev1.InstanceState_INSTANCE_STATE_RUNNING,
		Context: &wigglev1.Payload{Data: []byte(context)}, CreatedAt: timestamppb.New(start.Add(time.Duration(n) * time.Second)),
	}
	for _, f := range change {
		f(in)
	}
	d, err := document.From(in)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.index.Of(d.Key).Store.Upsert(s.Context(), []*document.Document{d}); err != nil {
		s.Fatal(postgres.Detail(err))
	}
}

func (s *scene) search(req *wigglev1.SearchRequest) *wigglev1.SearchResponse {
	s.Helper()
	res, err := s.Search(s.Context(), req)
	if err != nil {
		s.Fatal(err)
	}
	return res
}

func ids(res *wigglev1.SearchResponse) []string {
	list := make([]string, len(res.GetHits()))
	for i, h := range res.GetHits() {
		list[i] = h.GetInstanceId()
	}
	return list
}

// Hits of all shards come as one list, with what a hit says.
func TestMerged(t *testing.T) { // SRC-6
	t.Parallel()
	s := newScene(t, 3)
	for n := range 30 {
		s.put(n, fmt.Sprintf(`{"city":"Paris","n":%d}`, n))
	}
	s.put(30, `{"city":"Paris","note":"Paris, in Paris"}`, func(in *wigglev1.Instance) {
		in.Revision, in.State, in.EndedAt = 2, wigglev1.InstanceState_INSTANCE_STATE_FAILED, timestamppb.New(start)
		in.Failure = &wigglev1.Failure{Type: "T", Message: "why"}
	})
	s.put(31, `{"city":"Rome"}`)
	res := s.search(&wigglev1.SearchRequest{Query: "paris", PageSize: 5})
	if got, want := ids(res), []string{idOf(30), idOf(29), idOf(28), idOf(27), idOf(26)}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	h := res.GetHits()[0]
	if h.GetFailure() != "T: why" || h.GetNamespace() != "default" || h.GetWorkflow() != "order" || h.GetVersion() != 1 ||
		h.GetState() != wigglev1.InstanceState_INSTANCE_STATE_FAILED || h.GetPriority() != 5 || h.GetRank() <= res.GetHits()[1].GetRank() ||
		!h.GetCreatedAt().AsTime().Equal(start.Add(30*time.Second)) || !h.GetEndedAt().AsTime().Equal(start) ||
		len(h.GetSnippets()) == 0 || !strings.Contains(h.GetSnippets()[0], "\uE000Paris\uE001") {
		t.Errorf("the hit is %v", h)
	}
	sum := int64(0)
	for i, o := range res.GetShards() {
		sum += o.GetCount()
		if int(o.GetShard()) != 20+i || o.GetFault() != nil || o.GetSource() != "primary" {
			t.Errorf("the outcome of a shard is %v", o)
		}
	}
	if sum != 5 || len(res.GetShards()) != 3 {
		t.Errorf("the shards gave %d hits", sum)
	}
	all := s.search(&wigglev1.SearchRequest{PageSize: 100})
	if len(all.GetHits()) != 32 || all.GetHits()[0].GetInstanceId() != idOf(31) || all.GetNextPageToken() != "" {
		t.Errorf("without words %d were found", len(all.GetHits()))
	}
	if none := s.search(&wigglev1.SearchRequest{Query: "!!! ???"}); len(none.GetHits()) != 0 || len(none.GetShards()) != 3 {
		t.Errorf("text without a word finds %v", ids(none))
	}
	facets, err := s.CountFacets(t.Context(), &wigglev1.CountFacetsRequest{Query: "paris"})
	if err != nil || facets.GetTotal() != 31 || len(facets.GetByWorkflow()) != 1 || facets.GetByWorkflow()[0].GetCount() != 31 ||
		len(facets.GetByState()) != 2 || facets.GetByState()[0].GetCount() != 30 {
		t.Errorf("counted %v, %v", facets, err)
	}
}

// pages reads a whole list, changing documents between the pages.
func (s *scene) pages(req *wigglev1.SearchRequest, between func()) []string {
	s.Helper()
	var all []string
	for range 1000 {
		res := s.search(req)
		all = append(all, ids(res)...)
		if res.GetNextPageToken() == "" {
			return all
		}
		if len(res.GetNextPageToken()) > 1024 {
			s.Errorf("the page token has %d letters", len(res.GetNextPageToken()))
		}
		req.PageToken = res.GetNextPageToken()
		between()
	}
	s.Fatal("the list does not end")
	return nil
}

// Pages neither repeat nor leave out what does not change, while documents come, change and go.
func TestPaging(t *testing.T) { // SRC-6
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, text := range map[string]string{"ranked": "tea", "newest first": "", "without": "-coffee"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 0)) // of its own: a source is not for several at a time
			s := newScene(t, 2)
			const total = 150
			still := map[string]bool{}
			for n := range total {
				s.put(2*n, `"`+strings.Repeat("tea ", 1+n%4)+`"`)
				if n%3 > 0 {
					still[idOf(2*n)] = true
				}
			}
			next := 1
			got := s.pages(&wigglev1.SearchRequest{Query: text, PageSize: 7}, func() {
				for range 5 { // new ones, older and newer than all others
					s.put(next, `"tea"`)
					s.put(1000+next, `"tea tea tea tea tea"`)
					next += 2
				}
				n := 6 * random.IntN(total/3)
				s.put(n, `"tea `+strings.Repeat("tea ", random.IntN(5))+`"`)
				key, err := document.ParseKey(idOf(6 * random.IntN(total/3)))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.index.Of(key).Store.Delete(t.Context(), []searchstore.Head{{Key: key, Revision: 1}}); err != nil {
					t.Fatal(err)
				}
			})
			seen := map[string]int{}
			for _, id := range got {
				seen[id]++
			}
			for id := range still {
				if seen[id] != 1 {
					t.Errorf("%s comes %d times", id, seen[id])
				}
			}
		})
	}
}

// A list of more matches than are ranked together has each of them once.
func TestRounds(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2)
	const total = 3*searchstore.WindowSize + 500
	docs := map[*index.Shard][]*document.Document{}
	for n := range total {
		d, err := document.From(&wigglev1.Instance{
			Id: idOf(n), Namespace: "default", Workflow: "order", Revision: 1, CreatedAt: timestamppb.New(start.Add(time.Duration(n) * time.Second)),
			Context: &wigglev1.Payload{Data: []byte(`"` + strings.Repeat("tea ", 1+n%3) + `"`)},
		})
		if err != nil {
			t.Fatal(err)
		}
		docs[s.index.Of(d.Key)] = append(docs[s.index.Of(d.Key)], d)
	}
	for shard, list := range docs {
		if _, err := shard.Store.Upsert(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	got := s.pages(&wigglev1.SearchRequest{Query: "tea", PageSize: 100}, func() {})
	slices.Sort(got)
	if n := len(slices.Compact(got)); n != total || len(got) != total {
		t.Errorf("found %d, of which %d differ; want %d", len(got), n, total)
	}
}

// A shard that does not answer fails a search or is named, as the caller chooses; and is missing from the rest of its list.
func TestMissingShards(t *testing.T) { // SRC-6
	t.Parallel()
	s := newScene(t, 2)
	for n := range 60 {
		s.put(n, `"tea"`)
	}
	s.down[1].Store(true)
	for _, text := range []string{"tea", "", "-x"} {
		req := &wigglev1.SearchRequest{Query: text, PageSize: 10, MissingShards: failing}
		if _, err := s.Search(t.Context(), req); !errors.Is(err, faults.ErrShardsMissing) {
			t.Errorf("%q: all are wanted and one is away: %v", text, err)
		}
		req.MissingShards = partial
		res := s.search(req)
		if len(res.GetHits()) != 10 || res.GetShards()[0].GetFault() != nil || res.GetShards()[1].GetFault() == nil {
			t.Errorf("%q: partial: %d hits, %v", text, len(res.GetHits()), res.GetShards())
		}
		if got := s.pages(&wigglev1.SearchRequest{Query: text, PageSize: 10, MissingShards: partial}, func() {}); len(got) < 10 || len(got) > 50 {
			t.Errorf("%q: the shard that answers has %d", text, len(got))
		}
	}
	if _, err := s.CountFacets(t.Context(), &wigglev1.CountFacetsRequest{}); !errors.Is(err, faults.ErrShardsMissing) {
		t.Errorf("facets: %v", err)
	}
	facets, err := s.CountFacets(t.Context(), &wigglev1.CountFacetsRequest{MissingShards: partial})
	if err != nil || facets.GetTotal() == 0 || facets.GetTotal() == 60 || facets.GetShards()[1].GetFault() == nil {
		t.Errorf("partial facets: %v, %v", facets, err)
	}
	total, outcomes := s.Count(t.Context())
	if total != facets.GetTotal() || outcomes[1].GetFault() == nil {
		t.Errorf("counted %d, %v", total, outcomes)
	}

	// A shard that comes back within a list does not make it repeat anything.
	s.down[1].Store(false)
	req := &wigglev1.SearchRequest{Query: "tea", PageSize: 10, MissingShards: partial}
	page := 0
	got := s.pages(req, func() { page++; s.down[1].Store(page == 1) })
	slices.Sort(got)
	if n := len(got); n == 0 || len(slices.Compact(got)) != n {
		t.Errorf("the list repeats itself: %v", got)
	}
}

// A document that is on two shards, as while it moves, is one hit: the newer.
func TestOnTwoShards(t *testing.T) { // SRC-9
	t.Parallel()
	s := newScene(t, 2)
	for _, shard := range s.index.Shards {
		in := &wigglev1.Instance{
			Id: idOf(1), Namespace: "default", Workflow: "order", Revision: int32(shard.ID), CreatedAt: timestamppb.New(start),
			Context: &wigglev1.Payload{Data: []byte(`"tea"`)}, Version: int32(shard.ID),
		}
		d, err := document.From(in)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := shard.Store.Upsert(t.Context(), []*document.Document{d}); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"tea", ""} {
		if res := s.search(&wigglev1.SearchRequest{Query: text}); len(res.GetHits()) != 1 || res.GetHits()[0].GetVersion() != 21 {
			t.Errorf("%q: found %v", text, res.GetHits())
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	for n := range 3 {
		s.put(n, `"tea"`)
	}
	token := s.search(&wigglev1.SearchRequest{Query: "tea", PageSize: 1}).GetNextPageToken()
	nan := math.NaN()
	where := func(c ...*wigglev1.AttributeCondition) *wigglev1.SearchFilter {
		return &wigglev1.SearchFilter{Attributes: c}
	}
	for name, req := range map[string]*wigglev1.SearchRequest{
		"token of another query":  {Query: "coffee", PageToken: token},
		"token of another filter": {Query: "tea", PageToken: token, Filter: &wigglev1.SearchFilter{Workflows: []string{"x"}}},
		"cut token":               {Query: "tea", PageToken: token[:len(token)-2]},
		"other text":              {Query: "tea", PageToken: "bm9uZQ"},
		"letters":                 {Query: "tea", PageToken: "!"},
		"words without end":       {Query: strings.Repeat("w ", 33)},
		"no condition":            {Filter: where(&wigglev1.AttributeCondition{Path: "/a"})},
		"no path":                 {Filter: where(&wigglev1.AttributeCondition{Path: "a", Condition: &wigglev1.AttributeCondition_EqualsBool{}})},
		"long value":              {Filter: where(&wigglev1.AttributeCondition{Path: "/a", Condition: &wigglev1.AttributeCondition_Equals{Equals: strings.Repeat("x", 300)}})},
		"no number":               {Filter: where(&wigglev1.AttributeCondition{Path: "/a", Condition: &wigglev1.AttributeCondition_Range{Range: &wigglev1.NumberRange{AtMost: &nan}}})},
		"no time":                 {Filter: &wigglev1.SearchFilter{CreatedFrom: &timestamppb.Timestamp{Nanos: -1}}},
		"NUL":                     {Filter: &wigglev1.SearchFilter{Namespace: "a\x00"}},
	} {
		if res, err := s.Search(t.Context(), req); !errors.Is(err, faults.ErrInvalidArgument) {
			t.Errorf("%s: %v, %v", name, res, err)
		}
	}
	same := &wigglev1.SearchRequest{Query: "tea", PageToken: token, PageSize: 100, Filter: &wigglev1.SearchFilter{Namespace: "default"}}
	if res := s.search(same); len(res.GetHits()) != 2 {
		t.Errorf("a filter that spells out the default is the same; found %v", ids(res))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Search(ctx, &wigglev1.SearchRequest{Query: "tea"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who is gone gets %v", err)
	}
}

// FuzzSearch: no query is an internal error, or takes long.
func FuzzSearch(f *testing.F) {
	s := newScene(f, 2)
	for n := range 200 {
		s.put(n, `{"text":"`+strings.Repeat(fmt.Sprintf("tea green-tea a.b/c? it's w%d ", n), 1+n%30)+`"}`)
	}
	for _, text := range []string{
		`"`, `""`, `"tea`, `-`, `- - -`, `-tea -green`, `or or or`, `or`, `tea or -tea`, `"-" or "`, `'`, `\`, `'tea' & | ! ( ) :*`, "\x00tea\x00",
		`=w0000000000000 tea`, strings.Repeat("tea ", 256), strings.Repeat(`"tea `, 200), strings.Repeat("-", 1024), strings.Repeat("é", 512),
		`"` + strings.Repeat("green tea ", 100) + `"`, "tea <-> green", "tea:*", "te%", "\ue000tea\ue001", "a.b/c", "http://a.b/c?d=e#f", "<a href='x'>tea</a>",
		strings.Repeat("x", 1024), "\u202etea", "1e999 -0 0x10", strings.Repeat("a-", 512), strings.Repeat("tea or ", 30) + "tea", "🫖 or 茶",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text[:min(len(text), 1024)], "")
		began := time.Now()
		res, err := s.Search(t.Context(), &wigglev1.SearchRequest{Query: text, PageSize: 100})
		if err != nil && !errors.Is(err, faults.ErrInvalidArgument) {
			t.Fatalf("%q: %v", text, faults.FromError(err).Detail())
		}
		for _, h := range res.GetHits() {
			for _, snippet := range h.GetSnippets() {
				if strings.Count(snippet, "\uE000") != strings.Count(snippet, "\uE001") {
					t.Errorf("%q: the marks of %q are no pairs", text, snippet)
				}
			}
		}
		if _, err := s.CountFacets(t.Context(), &wigglev1.CountFacetsRequest{Query: text}); err != nil && !errors.Is(err, faults.ErrInvalidArgument) {
			t.Fatalf("%q: %v", text, faults.FromError(err).Detail())
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%q took %v", text, took)
		}
	})
}
