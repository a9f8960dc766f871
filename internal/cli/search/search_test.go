package search_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/internal/cli"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// update writes what is printed to the golden files, to be read through before they are kept.
var update = flag.Bool("update", false, "write the golden files")

// now is the time in tests.
var now = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

// wiggle runs a command and returns its exit code and all that came of it.
func wiggle(t *testing.T, url string, args ...string) (code int, transcript string) {
	t.Helper()
	var out, err bytes.Buffer
	p := &cli.Program{
		Out: &out, Err: &err, Environ: []string{"LANG=C.UTF-8", "WIGGLE_SERVER=" + url}, Location: time.UTC,
		Now: func() time.Time { return now },
	}
	code = cli.Run(t.Context(), p, args)
	text := "$ wiggle " + strings.Join(args, " ") + "\n" + out.String()
	if err.Len() > 0 {
		text += "--- standard error\n" + err.String()
	}
	return code, fmt.Sprintf("%s--- exit code %d\n", text, code)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || got != string(want) {
		t.Errorf("%s (%v): got\n%s\nwant\n%s", name, err, got, want)
	}
}

// fakeSearch answers searches; the service has tests of its own.
type fakeSearch struct {
	wigglev1connect.UnimplementedSearchServiceHandler

	asked chan *wigglev1.SearchRequest
}

func newFakeSearch(t *testing.T) (*fakeSearch, string) {
	t.Helper()
	f := &fakeSearch{asked: make(chan *wigglev1.SearchRequest, 100)}
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	server.Mount(wigglev1connect.NewSearchServiceHandler(f, server.Options()...))
	h := httptest.NewServer(http.HandlerFunc(server.Handler().ServeHTTP))
	t.Cleanup(h.Close)
	return f, h.URL
}

func outcomes(policy wigglev1.MissingShards) []*wigglev1.ShardOutcome {
	if policy != wigglev1.MissingShards_MISSING_SHARDS_PARTIAL {
		return []*wigglev1.ShardOutcome{{Shard: 20}}
	}
	return []*wigglev1.ShardOutcome{{Shard: 20}, {Shard: 21, Fault: faults.ShardUnavailable(21, time.Second).ToProto()}}
}

func (f *fakeSearch) Search(_ context.Context, req *wigglev1.SearchRequest) (*wigglev1.SearchResponse, error) {
	f.asked <- req
	res := &wigglev1.SearchResponse{Shards: outcomes(req.GetMissingShards())}
	if req.GetQuery() == "nothing" {
		return res, nil
	}
	res.Hits = fakeHits()
	for _, h := range res.GetHits() {
		if req.GetQuery() != "" {
			h.Rank, h.Snippets = 0.25, []string{"a cup of \uE000tea\uE001 and some more \uE000tea\uE001"}
		}
	}
	return res, nil
}

func at(seconds float64) *timestamppb.Timestamp {
	return timestamppb.New(now.Add(-time.Hour).Add(time.Duration(seconds * float64(time.Second))))
}

// fakeHits are one of each kind.
func fakeHits() []*wigglev1.SearchHit {
	return []*wigglev1.SearchHit{
		{
			InstanceId: "wfi.s0.01k6j00000000000000000000a", Namespace: "default", Workflow: "order", Version: 2, Priority: 5,
			State: wigglev1.InstanceState_INSTANCE_STATE_COMPLETED, CreatedAt: at(0), EndedAt: at(0.25),
		},
		{
			InstanceId: "wfi.s1.01k6j00000000000000000000b", Namespace: "default", Workflow: "order", Version: 2, Priority: 5,
			State: wigglev1.InstanceState_INSTANCE_STATE_FAILED, CreatedAt: at(-10), EndedAt: at(2),
			Failure: "CardDeclined: no\nmoney (authorise)",
		},
		{
			InstanceId: "wfi.s1.01k6j00000000000000000000c", Namespace: "default", Workflow: "order", Version: 2, Priority: 9,
			State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING, CreatedAt: at(-20),
		},
	}
}

func (f *fakeSearch) CountFacets(_ context.Context, req *wigglev1.CountFacetsRequest) (*wigglev1.CountFacetsResponse, error) {
	return &wigglev1.CountFacetsResponse{
		Total: 1234, Shards: outcomes(req.GetMissingShards()), Estimated: req.GetQuery() == "the",
		ByWorkflow: []*wigglev1.WorkflowCount{{Workflow: "refund", Count: 1000}, {Workflow: "order", Count: 234}},
		ByState: []*wigglev1.StateCount{
			{State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING, Count: 34}, {State: wigglev1.InstanceState_INSTANCE_STATE_COMPLETED, Count: 1200},
		},
	}, nil
}

func (f *fakeSearch) GetIndexStatus(context.Context, *wigglev1.GetIndexStatusRequest) (*wigglev1.GetIndexStatusResponse, error) {
	return &wigglev1.GetIndexStatusResponse{
		Documents: 1_000_000, Pending: -1, LastDelay: durationpb.New(123_456 * time.Microsecond), DelayP99: durationpb.New(time.Second),
		Shards: outcomes(wigglev1.MissingShards_MISSING_SHARDS_PARTIAL),
	}, nil
}

func (f *fakeSearch) Reindex(
	_ context.Context, req *wigglev1.ReindexRequest, stream *connect.ServerStream[wigglev1.ReindexResponse],
) error {
	if req.GetResume() == "" {
		if err := stream.Send(&wigglev1.ReindexResponse{Read: 50, Written: 5, Total: 100, Resume: "fromhere"}); err != nil {
			return err
		}
		if req.GetWorkflow() == "breaks" {
			return faults.InvalidArgument("something that trying again does not mend")
		}
		return faults.Unavailable(0, "the process goes down")
	}
	return stream.Send(&wigglev1.ReindexResponse{Read: 100, Written: 9, Total: 100, Done: true})
}

func (f *fakeSearch) Verify(_ context.Context, req *wigglev1.VerifyRequest, stream *connect.ServerStream[wigglev1.VerifyResponse]) error {
	res := &wigglev1.VerifyResponse{Compared: 10, Total: 100}
	if err := stream.Send(res); err != nil {
		return err
	}
	res.Compared, res.Missing, res.Stale, res.Orphaned, res.Done = 100, 3, 2, 1, true
	res.Examples = []string{"wfi.s0.01k6j00000000000000000000a", "wfi.s1.01k6j00000000000000000000b"}
	if req.GetRepair() {
		res.Repaired = 6
	}
	return stream.Send(res)
}

func TestSearchOutputs(t *testing.T) {
	t.Parallel()
	_, url := newFakeSearch(t)
	for name, args := range map[string][]string{
		"help":           {"search", "--help"},
		"hits":           {"search", "green", "tea"},
		"hits-json":      {"search", "tea", "-o", "json"},
		"newest":         {"search", "--limit", "2"},
		"none":           {"search", "nothing"},
		"partial":        {"search", "tea", "--partial", "--all"},
		"bad-limit":      {"search", "--limit", "0"},
		"bad-state":      {"search", "--state", "done"},
		"bad-time":       {"search", "--ended-since", "yesterday"},
		"bad-path":       {"search", "--where", "city=Paris"},
		"bad-condition":  {"search", "--where", "/city"},
		"bad-number":     {"search", "--where", "/total>=much"},
		"bad-sign":       {"search", "--where", "/total>1"},
		"facets":         {"search", "facets", "tea"},
		"facets-many":    {"search", "facets", "the"},
		"facets-json":    {"search", "facets", "--partial", "-o", "json"},
		"status":         {"search", "status"},
		"status-json":    {"search", "status", "-o", "json"},
		"reindex":        {"search", "reindex"},
		"reindex-json":   {"search", "reindex", "-o", "json"},
		"reindex-breaks": {"search", "reindex", "--workflow", "breaks"},
		"verify":         {"search", "verify"},
		"verify-json":    {"search", "verify", "-o", "json"},
		"verify-repair":  {"search", "verify", "--repair"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, transcript := wiggle(t, url, args...)
			golden(t, name, transcript)
		})
	}
}

// Flags become the request's filter.
func TestSearchFlags(t *testing.T) {
	t.Parallel()
	f, url := newFakeSearch(t)
	code, transcript := wiggle(t, url, "search", `"green tea"`, "or", "coffee", "--workflow", "order, refund", "--state", "failed,running",
		"--since", "1h", "--ended-until", "2026-10-03", "--key", "42", "--namespace", "n", "--limit", "7",
		"--where", "/city=Paris", "--where", "/zip=75001", "--where", `/code="75001"`, "--where", "/paid=true", "--where", "/total>=10.5",
		"--where", "/total<=20", "--where", "/a=b=c", "--where", "/none=null")
	if code != shell.ExitOK {
		t.Fatal(transcript)
	}
	req := <-f.asked
	filter := req.GetFilter()
	if req.GetQuery() != `"green tea" or coffee` || req.GetPageSize() != 8 || filter.GetNamespace() != "n" || filter.GetKey() != "42" ||
		strings.Join(filter.GetWorkflows(), "+") != "order+refund" || len(filter.GetStates()) != 2 ||
		!filter.GetCreatedFrom().AsTime().Equal(now.Add(-time.Hour)) || filter.GetCreatedBefore() != nil ||
		!filter.GetEndedBefore().AsTime().Equal(time.Date(2026, 10, 3, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("asked for %v", req)
	}
	var conditions []string
	for _, c := range filter.GetAttributes() {
		conditions = append(conditions, strings.ReplaceAll(c.String(), "  ", " "))
	}
	want := `path:"/city" equals:"Paris"; path:"/zip" equals_number:75001; path:"/code" equals:"75001"; path:"/paid" equals_bool:true; ` +
		`path:"/total" range:{at_least:10.5}; path:"/total" range:{at_most:20}; path:"/a" equals:"b=c"; path:"/none" equals:"null"`
	if got := strings.Join(conditions, "; "); got != want {
		t.Errorf("the conditions are\n%s\nwant\n%s", got, want)
	}
}

// On a terminal found words stand out, and what takes long has a bar.
func TestSearchOnATerminal(t *testing.T) {
	t.Parallel()
	_, url := newFakeSearch(t)
	var out, err bytes.Buffer
	p := &cli.Program{
		Out: &out, Err: &err, Environ: []string{"LANG=C.UTF-8", "WIGGLE_SERVER=" + url}, Location: time.UTC, Now: func() time.Time { return now },
		Terminal: true, Colours: true,
	}
	if code := cli.Run(t.Context(), p, []string{"search", "tea"}); code != shell.ExitOK || !strings.Contains(out.String(), "cup of \x1b[1mtea\x1b[0m and") {
		t.Errorf("exit code %d, %q", code, out.String())
	}
	if code := cli.Run(t.Context(), p, []string{"search", "reindex"}); code != shell.ExitOK || !strings.Contains(err.String(), "█░") ||
		!strings.HasSuffix(err.String(), "\r\x1b[K") {
		t.Errorf("exit code %d, %q", code, err.String())
	}
}
