package wiggle_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

type order struct {
	ID    int64  `json:"id"`
	State string `json:"state,omitempty"`
}

func TestDialRefusesNoURL(t *testing.T) {
	t.Parallel()
	for _, u := range []string{"", "localhost:8420", "ftp://x", "http://", "http://%zz"} {
		if _, err := wiggle.Dial(u); err == nil {
			t.Errorf("Dial(%q) gave no error", u)
		}
	}
}

// TestProtocols makes a call over a real socket with each protocol.
func TestProtocols(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.Handle(wigglev1connect.NewInstanceServiceHandler(newFake()))
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	defer srv.Close()
	for name, opts := range map[string][]wiggle.ClientOption{"connect": nil, "grpc": {wiggle.WithGRPC()}} {
		c, err := wiggle.Dial(srv.URL, opts...)
		if err != nil {
			t.Fatal(err)
		}
		run, err := c.Start(t.Context(), "flow", order{ID: 1})
		if err != nil || !run.Created {
			t.Errorf("%s: %+v, %v", name, run, err)
		}
		c.Close()
	}
}

func TestStartRequest(t *testing.T) {
	t.Parallel()
	f := newFake()
	var got *wigglev1.StartInstanceRequest
	f.onStart = func(r *wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
		got = r
		return &wigglev1.StartInstanceResponse{InstanceId: "wfi.s3." + r.GetUlid(), Version: 4}, nil
	}
	c := f.client(t, wiggle.WithNamespace("acme"))
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
	run, err := c.Start(ctx, "flow", order{ID: math.MaxInt64}, wiggle.WithPriority(0), wiggle.WithDelay(time.Minute), wiggle.WithVersion(4))
	if err != nil {
		t.Fatal(err)
	}
	if run.ID != "wfi.s3."+got.GetUlid() || run.Version != 4 || run.Created {
		t.Errorf("run %+v", run)
	}
	if !regexp.MustCompile(`^[0-9a-hjkmnp-tv-z]{26}$`).MatchString(got.GetUlid()) {
		t.Errorf("ulid %q", got.GetUlid())
	}
	if got.GetNamespace() != "acme" || got.Priority == nil || got.GetPriority() != 0 || got.GetDelay().AsDuration() != time.Minute || got.GetVersion() != 4 {
		t.Errorf("request %v", got)
	}
	if string(got.GetInput().GetData()) != `{"id":9223372036854775807}` {
		t.Errorf("input %s", got.GetInput().GetData())
	}
	if want := "00-01000000000000000000000000000000-0200000000000000-01"; got.GetTraceContext()["traceparent"] != want {
		t.Errorf("trace context %v", got.GetTraceContext())
	}
	if _, err := c.Start(t.Context(), "flow", nil, wiggle.WithULID("01K6ABCDEFGHJKMNPQRSTVWXYZ")); err != nil || got.GetUlid() != "01k6abcdefghjkmnpqrstvwxyz" {
		t.Errorf("ulid %q, %v", got.GetUlid(), err)
	}
	if _, err := c.Start(t.Context(), "flow", func() {}); err == nil || !strings.Contains(err.Error(), "start flow: encode") {
		t.Errorf("got %v", err)
	}
}

// TestStartRetries checks that a start is repeated with the same ulid, and that the
// server's pause is honoured.
func TestStartRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var ulids []string
		faults := []*wigglev1.Fault{
			{Code: int32(connect.CodeUnavailable), Message: "away", RetryAfter: durationpb.New(10 * time.Second)},
			{Code: int32(connect.CodeUnknown), Message: "lost", Kind: &wigglev1.Fault_OutcomeUnknown{OutcomeUnknown: &wigglev1.OutcomeUnknown{Shard: 1}}},
			{Code: int32(connect.CodeFailedPrecondition), Message: "not mine", Kind: &wigglev1.Fault_ShardUnknown{ShardUnknown: &wigglev1.ShardUnknown{Shard: 1}}},
			{Code: int32(connect.CodeResourceExhausted), Message: "busy", RetryAfter: durationpb.New(time.Second)},
		}
		f.onStart = func(r *wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
			ulids = append(ulids, r.GetUlid())
			if len(ulids) <= len(faults) {
				return nil, faultErr(faults[len(ulids)-1])
			}
			return &wigglev1.StartInstanceResponse{InstanceId: "i"}, nil
		}
		begin := time.Now()
		if _, err := f.client(t).Start(t.Context(), "flow", nil); err != nil {
			t.Fatal(err)
		}
		if len(ulids) != 5 || slices.ContainsFunc(ulids, func(u string) bool { return u != ulids[0] }) {
			t.Errorf("ulids %v", ulids)
		}
		if took := time.Since(begin); took < 8*time.Second || took > 16*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestStartGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, calls := newFake(), 0
		f.onStart = func(*wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
			calls++
			return nil, errDown
		}
		_, err := f.client(t, wiggle.WithRetries(3, time.Second, time.Second)).Start(t.Context(), "flow", nil)
		if !errors.Is(err, wiggle.ErrUnavailable) || calls != 3 {
			t.Errorf("%d calls: %v", calls, err)
		}
		// A caller that does not want to wait is not made to.
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begin := time.Now()
		_, err = f.client(t, wiggle.WithRetries(100, time.Minute, time.Minute)).Start(ctx, "flow", nil)
		if !errors.Is(err, wiggle.ErrUnavailable) || time.Since(begin) > 2*time.Second {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	f := newFake()
	c := f.client(t, wiggle.WithRetries(1, 0, 0))
	sentinels := []error{
		wiggle.ErrInvalid, wiggle.ErrNotFound, wiggle.ErrAlreadyExists, wiggle.ErrFailedPrecondition, wiggle.ErrDefinitionConflict,
		wiggle.ErrResourceExhausted, wiggle.ErrUnavailable, wiggle.ErrOutcomeUnknown, wiggle.ErrShardsMissing,
		wiggle.ErrUnauthenticated, wiggle.ErrPermissionDenied, wiggle.ErrInternal, wiggle.ErrLeaseLost,
	}
	fault := func(code connect.Code, message string) *wigglev1.Fault {
		return &wigglev1.Fault{Code: int32(code), Message: message}
	}
	conflict := fault(connect.CodeFailedPrecondition, "taken")
	conflict.Kind = &wigglev1.Fault_DefinitionConflict{DefinitionConflict: &wigglev1.DefinitionConflict{Differences: []string{"start a -> b"}}}
	invalid := fault(connect.CodeInvalidArgument, "bad graph")
	invalid.Kind = &wigglev1.Fault_Invalid{Invalid: &wigglev1.Invalid{Problems: []*wigglev1.Problem{{Where: "a", Message: "no next"}}}}
	missing := fault(connect.CodeUnavailable, "some away")
	missing.Kind = &wigglev1.Fault_ShardsMissing{ShardsMissing: &wigglev1.ShardsMissing{Shards: []int32{2, 5}}}
	internal := fault(connect.CodeInternal, "internal error")
	internal.ReferenceId = "ref1"
	tests := []struct {
		fault *wigglev1.Fault
		is    []error
		text  string
	}{
		{fault(connect.CodeNotFound, "gone"), []error{wiggle.ErrNotFound}, "wiggle: start flow: not_found: gone"},
		{fault(connect.CodeAlreadyExists, "x"), []error{wiggle.ErrAlreadyExists}, "x"},
		{fault(connect.CodeResourceExhausted, "x"), []error{wiggle.ErrResourceExhausted}, "x"},
		{fault(connect.CodeUnauthenticated, "x"), []error{wiggle.ErrUnauthenticated}, "x"},
		{fault(connect.CodePermissionDenied, "x"), []error{wiggle.ErrPermissionDenied}, "x"},
		{conflict, []error{wiggle.ErrFailedPrecondition, wiggle.ErrDefinitionConflict}, "taken\n\tstart a -> b"},
		{invalid, []error{wiggle.ErrInvalid}, "bad graph\n\ta: no next"},
		{missing, []error{wiggle.ErrUnavailable, wiggle.ErrShardsMissing}, "some away"},
		{internal, []error{wiggle.ErrInternal}, "internal error (reference ref1)"},
		{leaseLost(), []error{wiggle.ErrLeaseLost}, "lost"},
	}
	for _, tt := range tests {
		f.onStart = func(*wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
			return nil, faultErr(tt.fault)
		}
		_, err := c.Start(t.Context(), "flow", nil)
		var e *wiggle.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), tt.text) || e.Fault().GetCode() != tt.fault.GetCode() {
			t.Errorf("got %v", err)
		}
		for _, s := range sentinels {
			if errors.Is(err, s) != slices.Contains(tt.is, s) {
				t.Errorf("%v: errors.Is(%v) = %v", err, s, errors.Is(err, s))
			}
		}
	}
	f.onStart = func(*wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
		return nil, faultErr(missing)
	}
	_, err := c.Start(t.Context(), "flow", nil)
	if e := new(wiggle.Error); !errors.As(err, &e) || !slices.Equal(e.Shards, []int{2, 5}) {
		t.Errorf("shards of %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Start(ctx, "flow", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// dropping drops its first connections, as a server or a network does that goes, each in another way.
type dropping struct {
	next  http.RoundTripper
	drops []syscall.Errno
}

func (d *dropping) RoundTrip(req *http.Request) (*http.Response, error) {
	if len(d.drops) == 0 {
		return d.next.RoundTrip(req)
	}
	errno := d.drops[0]
	d.drops = d.drops[1:]
	_ = req.Body.Close()
	return nil, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", errno)}
}

// TestConnectionDropped: a call whose connection was dropped is made again; without retries it is UNAVAILABLE and not
// CANCELLED, which nobody did.
func TestConnectionDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, d := newFake(), &dropping{}
		f.onStart = func(r *wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
			return &wigglev1.StartInstanceResponse{InstanceId: r.GetUlid(), Created: true}, nil
		}
		n := newNetwork()
		n.serve(t, f.handler())
		client := n.httpClient(t, true)
		d.next, client.Transport = client.Transport, d
		for _, attempts := range []int{1, 3} {
			c, err := wiggle.Dial("http://fake", wiggle.WithHTTPClient(client), wiggle.WithLogger(slog.New(slog.DiscardHandler)),
				wiggle.WithRetries(attempts, time.Millisecond, time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			d.drops = []syscall.Errno{syscall.EPIPE, syscall.ECONNRESET}[:min(attempts, 2)]
			_, err = c.Start(t.Context(), "flow", nil)
			var e *wiggle.Error
			if attempts > 1 && err != nil || attempts == 1 && (!errors.As(err, &e) || e.Code != connect.CodeUnavailable) {
				t.Errorf("%d attempts: %v", attempts, err)
			}
		}
	})
}

func TestStartMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, seen := newFake(), map[string]int{}
		f.onStarts = func(r *wigglev1.StartInstancesRequest) {
			if n := proto.Size(r); n > 4<<20 || len(r.GetStarts()) > 1000 {
				t.Errorf("a call with %d starts and %d bytes", len(r.GetStarts()), n)
			}
		}
		f.onStart = func(r *wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
			name := r.GetWorkflow()
			seen[name]++
			switch {
			case name == "unknown":
				return nil, connect.NewError(connect.CodeNotFound, errors.New("unknown workflow"))
			case name == "slow" && seen[name] == 1:
				return nil, errDown
			}
			return &wigglev1.StartInstanceResponse{InstanceId: r.GetUlid(), Created: true}, nil
		}
		starts := []wiggle.Start{
			{Workflow: "ok"}, {Workflow: "unknown"}, {Workflow: "slow"}, {Workflow: "bad", Input: func() {}},
		}
		big := strings.Repeat("x", 2<<20)
		starts = append(starts, wiggle.Start{Workflow: "big", Input: big}, wiggle.Start{Workflow: "big", Input: big})
		for range 2000 {
			starts = append(starts, wiggle.Start{Workflow: "many", Input: 1})
		}
		out, err := f.client(t).StartMany(t.Context(), starts)
		if !errors.Is(err, wiggle.ErrNotFound) || len(out) != len(starts) {
			t.Fatalf("%d outcomes: %v", len(out), err)
		}
		for i, o := range out {
			if failed := i == 1 || i == 3; (o.Err != nil) != failed || (o.Run == nil) != failed {
				t.Errorf("outcome %d: %+v", i, o)
			}
		}
		if seen["slow"] != 2 || seen["ok"] != 1 || seen["unknown"] != 1 || seen["many"] != 2000 || seen["bad"] != 0 || seen["big"] != 2 {
			t.Errorf("starts %v", seen)
		}
	})
}

func TestResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, calls := newFake(), 0
		inst := &wigglev1.Instance{Id: "i", Workflow: "flow", State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING}
		f.onWait = func(ctx context.Context, r *wigglev1.WaitInstanceRequest) (*wigglev1.WaitInstanceResponse, error) {
			calls++
			switch calls {
			case 1: // as long as asked, and not yet over
				time.Sleep(r.GetWait().AsDuration())
				return &wigglev1.WaitInstanceResponse{Instance: inst}, nil
			case 2: // a connection that hangs
				<-ctx.Done()
				return nil, ctx.Err()
			case 3:
				return nil, errDown
			}
			return &wigglev1.WaitInstanceResponse{Instance: &wigglev1.Instance{
				Id: "i", State: wigglev1.InstanceState_INSTANCE_STATE_COMPLETED, EndedAt: timestamppb.Now(),
				Context: &wigglev1.Payload{Data: []byte(`{"id":9007199254740993}`)},
			}, Ended: true}, nil
		}
		c := f.client(t)
		out, err := wiggle.Result[order](t.Context(), c.Run("i"))
		if err != nil || out.ID != 9007199254740993 || calls != 4 {
			t.Errorf("%d calls: %+v, %v", calls, out, err)
		}
		loose, err := wiggle.Result[map[string]any](t.Context(), c.Run("i"))
		if err != nil || loose["id"] != json.Number("9007199254740993") {
			t.Errorf("%v, %v", loose, err)
		}
		if _, err := wiggle.Result[[]int](t.Context(), c.Run("i")); err == nil || !strings.Contains(err.Error(), "result of i") {
			t.Errorf("got %v", err)
		}
		raw, err := wiggle.Result[wiggle.Payload](t.Context(), c.Run("i"))
		if err != nil || string(raw.Data) != `{"id":9007199254740993}` {
			t.Errorf("%s, %v", raw.Data, err)
		}
	})
}

func TestResultOfAnInstanceThatFailed(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.onWait = func(context.Context, *wigglev1.WaitInstanceRequest) (*wigglev1.WaitInstanceResponse, error) {
		return &wigglev1.WaitInstanceResponse{Ended: true, Instance: &wigglev1.Instance{
			Id: "i", Workflow: "flow", State: wigglev1.InstanceState_INSTANCE_STATE_FAILED,
			Failure: &wigglev1.Failure{Type: "card-declined", Message: "no money", Node: "pay", Attempt: 3},
			Tokens:  []*wigglev1.Token{{Id: "tok", State: wigglev1.TokenState_TOKEN_STATE_FAILED}},
		}}, nil
	}
	_, err := wiggle.Result[order](t.Context(), f.client(t).Run("i"))
	var failed *wiggle.InstanceError
	if !errors.As(err, &failed) || failed.Instance.State != wiggle.Failed || failed.Instance.Failure.Type != "card-declined" || failed.Instance.Tokens[0].State != "FAILED" {
		t.Fatalf("got %v", err)
	}
	if want := "wiggle: instance i of flow ended FAILED: card-declined: no money (at pay, attempt 3)"; err.Error() != want {
		t.Errorf("got %q", err)
	}
	if inst, err := f.client(t).Get(t.Context(), "i"); err != nil || !inst.State.Ended() {
		t.Errorf("%+v, %v", inst, err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onWait = func(context.Context, *wigglev1.WaitInstanceRequest) (*wigglev1.WaitInstanceResponse, error) {
			return &wigglev1.WaitInstanceResponse{Instance: &wigglev1.Instance{}}, nil // at once, without waiting
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := f.client(t).Run("i").Wait(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestList(t *testing.T) {
	t.Parallel()
	f := newFake()
	var requests []*wigglev1.ListInstancesRequest
	f.onList = func(r *wigglev1.ListInstancesRequest) (*wigglev1.ListInstancesResponse, error) {
		requests = append(requests, r)
		res := &wigglev1.ListInstancesResponse{Shards: []*wigglev1.ShardOutcome{
			{Shard: 0}, {Shard: 3, Fault: &wigglev1.Fault{Code: int32(connect.CodeUnavailable), Message: "away"}},
		}}
		page := len(r.GetPageToken())
		res.Instances = []*wigglev1.Instance{{Id: fmt.Sprint(page, "a")}, {Id: fmt.Sprint(page, "b")}}
		if page < 2 {
			res.NextPageToken = r.GetPageToken() + "+"
		}
		return res, nil
	}
	c := f.client(t, wiggle.WithNamespace("acme"))
	filter := wiggle.Filter{Workflow: "flow", States: []wiggle.State{wiggle.Failed}, CreatedFrom: time.Unix(1, 0), CreatedBefore: time.Unix(2, 0)}
	var ids []string
	var last error
	for inst, err := range c.List(t.Context(), filter, wiggle.AllowPartial(), wiggle.PageSize(2)) {
		if err != nil {
			last = err
			continue
		}
		ids = append(ids, inst.ID)
	}
	if got := strings.Join(ids, " "); got != "0a 0b 1a 1b 2a 2b" {
		t.Errorf("got %s", got)
	}
	var partial *wiggle.PartialError
	if !errors.As(last, &partial) || !errors.Is(last, wiggle.ErrShardsMissing) || len(partial.Missing) != 1 ||
		partial.Missing[0].Shard != 3 || !errors.Is(partial.Missing[0].Err, wiggle.ErrUnavailable) {
		t.Errorf("got %v", last)
	}
	r := requests[0]
	if r.GetFilter().GetNamespace() != "acme" || r.GetFilter().GetWorkflow() != "flow" || len(r.GetFilter().GetStates()) != 1 ||
		r.GetPageSize() != 2 || r.GetMissingShards() != wigglev1.MissingShards_MISSING_SHARDS_PARTIAL ||
		r.GetFilter().GetCreatedBefore().AsTime() != time.Unix(2, 0).UTC() {
		t.Errorf("request %v", r)
	}
	for range c.List(t.Context(), wiggle.Filter{}) {
		break // must not read on
	}
	if len(requests) != 4 || requests[3].GetMissingShards() != wigglev1.MissingShards_MISSING_SHARDS_FAIL {
		t.Errorf("%d requests", len(requests))
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.onCount = func(r *wigglev1.CountInstancesRequest) (*wigglev1.CountInstancesResponse, error) {
		res := &wigglev1.CountInstancesResponse{
			Total:   5,
			ByState: []*wigglev1.StateCount{{State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING, Count: 5}},
			Shards:  []*wigglev1.ShardOutcome{{Shard: 1, Count: 5}},
		}
		if r.GetMissingShards() == wigglev1.MissingShards_MISSING_SHARDS_PARTIAL {
			res.Shards = append(res.Shards, &wigglev1.ShardOutcome{Shard: 2, Fault: &wigglev1.Fault{Code: 14}})
		}
		return res, nil
	}
	c := f.client(t)
	n, err := c.Count(t.Context(), wiggle.Filter{})
	if err != nil || n.Total != 5 || n.ByState[wiggle.Running] != 5 || n.ByShard[1] != 5 {
		t.Errorf("%+v, %v", n, err)
	}
	n, err = c.Count(t.Context(), wiggle.Filter{}, wiggle.AllowPartial())
	if !errors.Is(err, wiggle.ErrShardsMissing) || n.Total != 5 || len(n.ByShard) != 1 {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestHistoryAndCancel(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.onHistory = func(r *wigglev1.GetHistoryRequest) (*wigglev1.GetHistoryResponse, error) {
		if r.GetPageToken() == "" {
			return &wigglev1.GetHistoryResponse{NextPageToken: "2", Entries: []*wigglev1.HistoryEntry{{Kind: wigglev1.HistoryKind_HISTORY_KIND_STARTED}}}, nil
		}
		return &wigglev1.GetHistoryResponse{Entries: []*wigglev1.HistoryEntry{{
			Kind: wigglev1.HistoryKind_HISTORY_KIND_STEP_COMPLETED, Step: "pay", Attempt: 2, Output: &wigglev1.Payload{Data: []byte("1")},
		}}}, nil
	}
	f.onCancel = func(r *wigglev1.CancelInstanceRequest) (*wigglev1.CancelInstanceResponse, error) {
		if r.GetReason() != "why not" {
			return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("it has completed"))
		}
		return &wigglev1.CancelInstanceResponse{}, nil
	}
	run := f.client(t).Run("i")
	var kinds []string
	for e, err := range run.History(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, e.Kind+e.Step)
	}
	if got := strings.Join(kinds, " "); got != "STARTED STEP_COMPLETEDpay" {
		t.Errorf("got %s", got)
	}
	if err := run.Cancel(t.Context(), "why not"); err != nil {
		t.Error(err)
	}
	if err := run.Cancel(t.Context(), ""); !errors.Is(err, wiggle.ErrFailedPrecondition) {
		t.Errorf("got %v", err)
	}
}

func TestRegister(t *testing.T) {
	t.Parallel()
	f := newFake()
	c := f.client(t)
	reg, err := c.Register(t.Context(), everything())
	if err != nil || reg.Version != 1 || !reg.Created || !slices.Equal(reg.ShardsBehind, []int{2}) {
		t.Errorf("%+v, %v", reg, err)
	}
	def, err := c.Workflow(t.Context(), "everything", 0)
	if err != nil || def.Fingerprint() != everything().Fingerprint() {
		t.Errorf("%v, %v", def, err)
	}
	if _, err := c.Workflow(t.Context(), "none", 2); !errors.Is(err, wiggle.ErrNotFound) || !strings.Contains(err.Error(), "read workflow none version 2") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Register(t.Context(), orderFulfilment()); err != nil {
		t.Fatal(err)
	}
	var names []string
	for v, err := range c.Workflows(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("%s@%d", v.Name, v.Version))
	}
	if got := strings.Join(names, " "); got != "everything@2 everything@1 order-fulfilment@2 order-fulfilment@1" {
		t.Errorf("got %s", got)
	}
}
