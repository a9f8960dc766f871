package wiggle_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// searchFake answers searches.
type searchFake struct {
	wigglev1connect.UnimplementedSearchServiceHandler

	searches  chan *wigglev1.SearchRequest
	reindexes chan *wigglev1.ReindexRequest
	verifies  chan *wigglev1.VerifyRequest
	left      chan struct{} // a stream's caller is gone
}

func newSearchFake(t *testing.T) (*searchFake, *wiggle.Client) {
	t.Helper()
	f := &searchFake{
		searches: make(chan *wigglev1.SearchRequest, 10), reindexes: make(chan *wigglev1.ReindexRequest, 10),
		verifies: make(chan *wigglev1.VerifyRequest, 10), left: make(chan struct{}, 1),
	}
	mux := http.NewServeMux()
	mux.Handle(wigglev1connect.NewSearchServiceHandler(f))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	c, err := wiggle.Dial(srv.URL, wiggle.WithRetries(3, time.Millisecond, time.Millisecond), wiggle.WithNamespace("n"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return f, c
}

func (f *searchFake) Search(_ context.Context, req *wigglev1.SearchRequest) (*wigglev1.SearchResponse, error) {
	f.searches <- req
	if req.GetQuery() == "wrong" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no"))
	}
	hit := func(id string) *wigglev1.SearchHit {
		return &wigglev1.SearchHit{
			InstanceId: id, Namespace: "n", Workflow: "w", Version: 2, State: wigglev1.InstanceState_INSTANCE_STATE_FAILED, Key: "k", Priority: 5,
			CreatedAt: timestamppb.New(time.Unix(1, 0)), Snippets: []string{"a " + wiggle.MarkStart + "b" + wiggle.MarkStop}, Rank: 0.5, Failure: "why",
		}
	}
	if req.GetPageToken() == "" {
		return &wigglev1.SearchResponse{
			Hits: []*wigglev1.SearchHit{hit("1"), hit("2")}, NextPageToken: "next",
			Shards: []*wigglev1.ShardOutcome{{Shard: 20}, {Shard: 21, Fault: &wigglev1.Fault{Code: int32(connect.CodeUnavailable), Message: "away"}}},
		}, nil
	}
	return &wigglev1.SearchResponse{Hits: []*wigglev1.SearchHit{hit("3")}}, nil
}

func (f *searchFake) CountFacets(context.Context, *wigglev1.CountFacetsRequest) (*wigglev1.CountFacetsResponse, error) {
	return &wigglev1.CountFacetsResponse{
		Total: 3, ByWorkflow: []*wigglev1.WorkflowCount{{Workflow: "w", Count: 3}}, Estimated: true,
		ByState: []*wigglev1.StateCount{{State: wigglev1.InstanceState_INSTANCE_STATE_FAILED, Count: 3}},
	}, nil
}

func (f *searchFake) GetIndexStatus(context.Context, *wigglev1.GetIndexStatusRequest) (*wigglev1.GetIndexStatusResponse, error) {
	return &wigglev1.GetIndexStatusResponse{Documents: 7, Pending: 2, LastDelay: durationpb.New(time.Second), DelayP99: durationpb.New(time.Minute)}, nil
}

func (f *searchFake) Reindex(
	ctx context.Context, req *wigglev1.ReindexRequest, stream *connect.ServerStream[wigglev1.ReindexResponse],
) error {
	f.reindexes <- req
	switch req.GetResume() {
	case "":
		if err := stream.Send(&wigglev1.ReindexResponse{Read: 1, Total: 3, Resume: "one"}); err != nil {
			return err
		}
		return connect.NewError(connect.CodeUnavailable, errors.New("going down"))
	case "one":
		if err := stream.Send(&wigglev1.ReindexResponse{Read: 2, Total: 3, Resume: "two"}); err != nil {
			return err
		}
		return connect.NewError(connect.CodeUnavailable, errors.New("going down"))
	case "stuck":
		return connect.NewError(connect.CodeUnavailable, errors.New("away"))
	case "slow":
		if err := stream.Send(&wigglev1.ReindexResponse{Read: 1, Resume: "slow"}); err != nil {
			return err
		}
		<-ctx.Done()
		f.left <- struct{}{}
		return ctx.Err()
	}
	return stream.Send(&wigglev1.ReindexResponse{Read: 3, Written: 1, Total: 3, Done: true})
}

func (f *searchFake) Verify(_ context.Context, req *wigglev1.VerifyRequest, stream *connect.ServerStream[wigglev1.VerifyResponse]) error {
	f.verifies <- req
	if err := stream.Send(&wigglev1.VerifyResponse{Compared: 1, Total: 2}); err != nil || req.GetWorkflow() == "breaks" {
		return errors.Join(err, connect.NewError(connect.CodeUnavailable, errors.New("away")))
	}
	return stream.Send(&wigglev1.VerifyResponse{
		Compared: 2, Total: 2, Missing: 1, Stale: 2, Orphaned: 3, Repaired: 4, Examples: []string{"x"}, Done: true,
	})
}

func TestSearch(t *testing.T) {
	t.Parallel()
	f, c := newSearchFake(t)
	low := 10.0
	filter := wiggle.SearchFilter{
		Workflows: []string{"w"}, States: []wiggle.State{wiggle.Failed}, CreatedFrom: time.Unix(1, 0), EndedBefore: time.Unix(2, 0), Key: "k",
		Where: []wiggle.Condition{
			wiggle.WhereText("/a", "b"), wiggle.WhereNumber("/c", 1), wiggle.WhereBool("/d", true), wiggle.WhereRange("/e", &low, nil),
		},
	}
	var ids []string
	var partial *wiggle.PartialError
	for h, err := range c.Search(t.Context(), "tea", filter, wiggle.PageSize(2), wiggle.AllowPartial()) {
		if err != nil {
			if !errors.As(err, &partial) {
				t.Fatal(err)
			}
			continue
		}
		ids = append(ids, h.InstanceID)
		if h.Workflow != "w" || h.Version != 2 || h.State != wiggle.Failed || h.Rank != 0.5 || len(h.Snippets) != 1 || h.Failure != "why" ||
			h.Key != "k" || h.Priority != 5 || !h.CreatedAt.Equal(time.Unix(1, 0)) || !h.EndedAt.IsZero() || h.Namespace != "n" {
			t.Errorf("got %+v", h)
		}
	}
	if !slices.Equal(ids, []string{"1", "2", "3"}) || partial == nil || len(partial.Missing) != 1 || partial.Missing[0].Shard != 21 {
		t.Errorf("found %v, then %v", ids, partial)
	}
	first, second := <-f.searches, <-f.searches
	got := first.GetFilter()
	if first.GetQuery() != "tea" || first.GetPageSize() != 2 || first.GetMissingShards() != wigglev1.MissingShards_MISSING_SHARDS_PARTIAL ||
		got.GetNamespace() != "n" || got.GetKey() != "k" || len(got.GetAttributes()) != 4 || got.GetCreatedFrom().GetSeconds() != 1 ||
		got.GetCreatedBefore() != nil || got.GetEndedFrom() != nil || got.GetEndedBefore().GetSeconds() != 2 ||
		got.GetAttributes()[3].GetRange().GetAtLeast() != 10 || got.GetAttributes()[3].GetRange().AtMost != nil || second.GetPageToken() != "next" {
		t.Errorf("asked for %v, then %v", first, second)
	}
	for range c.Search(t.Context(), "tea", wiggle.SearchFilter{}) {
		break // nothing is asked for that nobody wants
	}
	<-f.searches
	for _, err := range c.Search(t.Context(), "wrong", wiggle.SearchFilter{}) {
		if !errors.Is(err, wiggle.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	}
	facets, err := c.SearchFacets(t.Context(), "tea", filter)
	if err != nil || facets.Total != 3 || facets.ByWorkflow["w"] != 3 || facets.ByState[wiggle.Failed] != 3 || !facets.Estimated {
		t.Errorf("counted %+v, %v", facets, err)
	}
	status, err := c.IndexStatus(t.Context())
	if err != nil || status.Documents != 7 || status.Pending != 2 || status.LastDelay != time.Second || status.DelayP99 != time.Minute {
		t.Errorf("the status is %+v, %v", status, err)
	}
}

// A reindex goes on by itself where a server went away, as long as it gets on.
func TestReindex(t *testing.T) {
	t.Parallel()
	f, c := newSearchFake(t)
	var read []int64
	for p, err := range c.Reindex(t.Context(), wiggle.ReindexOptions{Rate: 5, Workflow: "w"}) {
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, p.Read)
		if p.Done != (p.Read == 3) {
			t.Errorf("got %+v", p)
		}
	}
	if !slices.Equal(read, []int64{1, 2, 3}) {
		t.Errorf("read %v", read)
	}
	for _, want := range []string{"", "one", "two"} {
		if req := <-f.reindexes; req.GetResume() != want || req.GetNamespace() != "n" || req.GetRate() != 5 || req.GetWorkflow() != "w" {
			t.Errorf("asked for %v, want it to go on from %q", req, want)
		}
	}
	calls := 0
	for p, err := range c.Reindex(t.Context(), wiggle.ReindexOptions{Resume: "stuck", AllNamespaces: true}) {
		if calls++; !errors.Is(err, wiggle.ErrUnavailable) {
			t.Errorf("got %+v, %v", p, err)
		}
	}
	if calls != 1 || len(f.reindexes) != 3 || (<-f.reindexes).GetNamespace() != "" {
		t.Errorf("the server was asked %d times", len(f.reindexes))
	}
	for range c.Reindex(t.Context(), wiggle.ReindexOptions{Resume: "slow"}) {
		break
	}
	<-f.left
}

func TestVerifyIndex(t *testing.T) {
	t.Parallel()
	f, c := newSearchFake(t)
	var last wiggle.VerifyProgress
	for p, err := range c.VerifyIndex(t.Context(), wiggle.VerifyOptions{Repair: true}) {
		if err != nil {
			t.Fatal(err)
		}
		last = p
	}
	if last.Compared != 2 || last.Missing != 1 || last.Stale != 2 || last.Orphaned != 3 || last.Repaired != 4 || !last.Done || len(last.Examples) != 1 {
		t.Errorf("got %+v", last)
	}
	if req := <-f.verifies; !req.GetRepair() || req.GetNamespace() != "n" {
		t.Errorf("asked for %v", req)
	}
	var failed error
	for _, err := range c.VerifyIndex(t.Context(), wiggle.VerifyOptions{Workflow: "breaks"}) {
		failed = err
	}
	if !errors.Is(failed, wiggle.ErrUnavailable) {
		t.Errorf("got %v", failed)
	}
}
