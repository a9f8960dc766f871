package rpc

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/pagetoken"
	"github.com/wiggle-run/wiggle/pkg/tracecontext"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// What bounds answers and waits.
const (
	defaultPage       = 100
	maxPage           = 1000
	defaultHistory    = 1000
	maxHistory        = 10_000
	maxTokens         = 1000
	defaultWait       = 30 * time.Second
	maxWait           = 5 * time.Minute
	maxDelay          = 100 * 365 * 24 * time.Hour
	defaultPriority   = 5
	maxTraceBytes     = 4096
	maxContentType    = 255
	maxNamespaceBytes = 64
	maxWorkflowBytes  = 128
	maxReasonBytes    = 4096
)

// StartInstance starts one instance on the shard that the caller names.
func (s *Server) StartInstance(ctx context.Context, req *wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
	res, err := s.StartInstances(ctx, &wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{req}})
	if err != nil {
		return nil, err
	}
	outcome := res.GetOutcomes()[0]
	if f := outcome.GetFault(); f != nil {
		return nil, faults.FromProto(f)
	}
	return outcome.GetStarted(), nil
}

// StartInstances starts instances on the shard that the caller names.
func (s *Server) StartInstances(ctx context.Context, req *wigglev1.StartInstancesRequest) (*wigglev1.StartInstancesResponse, error) {
	shard, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	copied, err := s.shards.Definitions(shard.ID())
	if err != nil {
		return nil, err
	}
	copied.Ensure(ctx)
	results := s.start(ctx, shard, req.GetStarts())
	if again := missed(results); len(again) > 0 && copied.Refresh(ctx) {
		s.startAgain(ctx, shard, req.GetStarts(), results, again)
	}
	if err := allRefused(results); err != nil {
		return nil, fault(shard.ID(), err)
	}
	res := &wigglev1.StartInstancesResponse{}
	for i, r := range results {
		if r.Err != nil {
			f := s.item(ctx, startFault(shard.ID(), req.GetStarts()[i], r.Err))
			res.Outcomes = append(res.Outcomes, &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Fault{Fault: f}})
			continue
		}
		res.Outcomes = append(res.Outcomes, &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Started{
			Started: &wigglev1.StartInstanceResponse{
				InstanceId: instanceID(shard.ID(), r.id), Version: r.Version, Created: r.Created,
			},
		}})
	}
	return res, nil
}

// started is a start's answer with its id.
type started struct {
	dispatch.Started
	id machine.ID
}

// start runs the starts that can be read.
func (s *Server) start(ctx context.Context, shard *dispatch.Shard, starts []*wigglev1.StartInstanceRequest) []started {
	results := make([]started, len(starts))
	items := make([]dispatch.StartItem, 0, len(starts))
	index := make([]int, 0, len(starts))
	for i, req := range starts {
		item, err := startItem(ctx, req)
		if err != nil {
			results[i].Err = err
			continue
		}
		results[i].id = item.Event.ID
		items, index = append(items, item), append(index, i)
	}
	for i, r := range shard.Start(items) {
		results[index[i]].Started = r
	}
	return results
}

// allRefused is the error of a call none of whose starts was taken for there being too many. It is told once: under a load many
// times of what is sustainable most of the work is to refuse.
func allRefused(results []started) error {
	for _, r := range results {
		if !errors.Is(r.Err, dispatch.ErrOverloaded) {
			return nil
		}
	}
	if len(results) == 0 {
		return nil
	}
	return results[0].Err
}

// missed lists the starts whose workflow the shard does not know.
func missed(results []started) []int {
	var again []int
	for i, r := range results {
		if errors.Is(r.Err, dispatch.ErrNoWorkflow) {
			again = append(again, i)
		}
	}
	return again
}

func (s *Server) startAgain(
	ctx context.Context, shard *dispatch.Shard, starts []*wigglev1.StartInstanceRequest, results []started, again []int,
) {
	some := make([]*wigglev1.StartInstanceRequest, len(again))
	for i, at := range again {
		some[i] = starts[at]
	}
	for i, r := range s.start(ctx, shard, some) {
		results[again[i]] = r
	}
}

func startItem(ctx context.Context, req *wigglev1.StartInstanceRequest) (dispatch.StartItem, error) {
	id, err := ulid.ParseStrict(strings.ToUpper(req.GetUlid()))
	if err != nil {
		return dispatch.StartItem{}, faults.InvalidArgument("malformed ulid %.60q: want 26 characters of Crockford base 32", req.GetUlid())
	}
	delay, err := span("delay", req.GetDelay(), 0, 0, maxDelay)
	if err != nil {
		return dispatch.StartItem{}, err
	}
	for _, text := range []struct {
		what, text string
		most       int
	}{
		{"namespace", req.GetNamespace(), maxNamespaceBytes},
		{"workflow", req.GetWorkflow(), maxWorkflowBytes},
		{"content type", req.GetInput().GetContentType(), maxContentType},
	} {
		if err := clean(text.what, text.text, text.most); err != nil {
			return dispatch.StartItem{}, err
		}
	}
	caller := trace.SpanContextFromContext(ctx)
	own, err := traceOf(req, caller)
	if err != nil {
		return dispatch.StartItem{}, err
	}
	priority := int32(defaultPriority)
	if req.Priority != nil {
		priority = min(max(req.GetPriority(), 0), 9)
	}
	return dispatch.StartItem{
		Workflow: req.GetWorkflow(), Version: req.GetVersion(), Caller: caller,
		Event: machine.Start{
			ID: machine.ID(id), Namespace: namespace(req.GetNamespace()), Input: payload(req.GetInput()),
			Priority: int16(priority), Delay: delay, Trace: own,
		},
	}, nil
}

// traceOf is the trace context that an instance keeps: what its start names, else that of the call. Nothing is kept of
// what is not sampled (OPS-10).
func traceOf(req *wigglev1.StartInstanceRequest, caller trace.SpanContext) (map[string]string, error) {
	carried := req.GetTraceContext()
	if len(carried) == 0 {
		return tracecontext.ToMap(caller), nil
	}
	size := 0
	for k, v := range carried {
		size += len(k) + len(v)
	}
	if size > maxTraceBytes {
		const refusal = "the trace context is %d bytes long, at most %d are allowed"
		return nil, faults.InvalidArgument(refusal, size, maxTraceBytes)
	}
	return tracecontext.ToMap(tracecontext.FromMap(carried)), nil
}

func startFault(shard int, req *wigglev1.StartInstanceRequest, err error) error {
	switch {
	case errors.Is(err, dispatch.ErrNoWorkflow) && req.GetVersion() > 0:
		return faults.NotFound("version", versionName(req.GetWorkflow(), req.GetVersion()))
	case errors.Is(err, dispatch.ErrNoWorkflow):
		return faults.NotFound("workflow", req.GetWorkflow())
	case errors.Is(err, dispatch.ErrOtherStart):
		return faults.AlreadyExists("instance of another workflow", instanceULID(req))
	}
	return fault(shard, err)
}

func instanceULID(req *wigglev1.StartInstanceRequest) string { return "with the ulid " + req.GetUlid() }

// GetInstance reads one instance.
func (s *Server) GetInstance(ctx context.Context, req *wigglev1.GetInstanceRequest) (*wigglev1.GetInstanceResponse, error) {
	shard, id, err := s.instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	if err := s.check(ctx, shard, id, actionRead); err != nil {
		return nil, err
	}
	c := reads.Call{Procedure: wigglev1connect.InstanceServiceGetInstanceProcedure}
	view, _, err := read(ctx, s, shard.ID(), c, func(ctx context.Context, r store.Reader) (store.InstanceView, error) {
		return r.Instance(ctx, id, maxTokens)
	})
	if err != nil {
		return nil, instanceFault(shard.ID(), req.GetInstanceId(), 0, err)
	}
	in := instanceProto(shard.ID(), view.Instance)
	in.ActiveTokens = int32(min(view.Active, 1<<30)) //nolint:gosec // bounded
	for _, t := range view.Tokens {
		in.Tokens = append(in.Tokens, tokenProto(shard.ID(), t))
	}
	return &wigglev1.GetInstanceResponse{Instance: in}, nil
}

// GetHistory reads a page of an instance's history. One that is not the first is read
// from the primary: a replica might have less than the page before has told of.
func (s *Server) GetHistory(ctx context.Context, req *wigglev1.GetHistoryRequest) (*wigglev1.GetHistoryResponse, error) {
	shard, id, err := s.instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	after, err := parseHistoryToken(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	if err := s.check(ctx, shard, id, actionRead); err != nil {
		return nil, err
	}
	size := page(req.GetPageSize(), defaultHistory, maxHistory)
	c := reads.Call{Procedure: wigglev1connect.InstanceServiceGetHistoryProcedure, Primary: req.GetPageToken() != ""}
	rows, _, err := read(ctx, s, shard.ID(), c, func(ctx context.Context, r store.Reader) ([]store.HistoryRow, error) {
		if _, err := r.Instance(ctx, id, 0); err != nil {
			return nil, err
		}
		return r.History(ctx, id, after, size+1)
	})
	if err != nil {
		return nil, instanceFault(shard.ID(), req.GetInstanceId(), 0, err)
	}
	res := &wigglev1.GetHistoryResponse{}
	if len(rows) > size {
		rows = rows[:size]
		res.NextPageToken = historyToken(rows[size-1].Key)
	}
	for _, r := range rows {
		r.Entry.TokenId = tokenID(shard.ID(), r.Key.Token)
		if parent, err := ulid.ParseStrict(r.Entry.GetParentTokenId()); err == nil {
			r.Entry.ParentTokenId = tokenID(shard.ID(), machine.ID(parent))
		}
		res.Entries = append(res.Entries, r.Entry)
	}
	return res, nil
}

// WaitInstance waits for the end of an instance.
func (s *Server) WaitInstance(ctx context.Context, req *wigglev1.WaitInstanceRequest) (*wigglev1.WaitInstanceResponse, error) {
	shard, id, err := s.instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	wait, err := span("wait", req.GetWait(), defaultWait, 0, maxWait)
	if err != nil {
		return nil, err
	}
	if err := s.check(ctx, shard, id, actionRead); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	in, err := shard.WaitEnd(ctx, id)
	if err != nil {
		return nil, instanceFault(shard.ID(), req.GetInstanceId(), 0, err)
	}
	return &wigglev1.WaitInstanceResponse{Instance: instanceProto(shard.ID(), in), Ended: in.State.Terminal()}, nil
}

// settleTime is after which time an instance is surely committed, or never will be: a
// batch takes no longer.
const settleTime = 30 * time.Second

// ListInstances lists the instances of the shard that the caller names. A page that is
// not the first is read where all those behind it are that could be seen before.
func (s *Server) ListInstances(ctx context.Context, req *wigglev1.ListInstancesRequest) (*wigglev1.ListInstancesResponse, error) {
	shard, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	c := reads.Call{Procedure: wigglev1connect.InstanceServiceListInstancesProcedure}
	after := store.ListKey{}
	if req.GetPageToken() != "" {
		t, err := pagetoken.DecodeFor(req.GetPageToken(), req.GetFilter())
		if err != nil {
			return nil, faults.InvalidArgument("%v", err)
		}
		after, c.NotBefore = store.ListKey{CreatedAt: t.CreatedAt, ID: t.ULID}, t.CreatedAt.Add(settleTime)
	}
	size, f := page(req.GetPageSize(), defaultPage, maxPage), visible(ctx, req.GetFilter())
	list, from, err := read(ctx, s, shard.ID(), c, func(ctx context.Context, r store.Reader) ([]*machine.Instance, error) {
		return r.List(ctx, f, after, size+1)
	})
	if err != nil {
		return nil, fault(shard.ID(), err)
	}
	res := &wigglev1.ListInstancesResponse{}
	if len(list) > size {
		list = list[:size]
		last := list[size-1]
		res.NextPageToken = pagetoken.Encode(pagetoken.Token{
			CreatedAt: last.CreatedAt, ULID: last.ID, FilterHash: pagetoken.FilterHash(req.GetFilter()),
		})
	}
	for _, in := range list {
		res.Instances = append(res.Instances, instanceProto(shard.ID(), in))
	}
	res.Shards = outcome(shard.ID(), int64(len(list)), from)
	return res, nil
}

// CountInstances counts the instances of the shard that the caller names.
func (s *Server) CountInstances(ctx context.Context, req *wigglev1.CountInstancesRequest) (*wigglev1.CountInstancesResponse, error) {
	shard, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	c, f := reads.Call{Procedure: wigglev1connect.InstanceServiceCountInstancesProcedure}, visible(ctx, req.GetFilter())
	counts, from, err := read(ctx, s, shard.ID(), c, func(ctx context.Context, r store.Reader) (map[machine.InstanceState]int64, error) {
		return r.Count(ctx, f)
	})
	if err != nil {
		return nil, fault(shard.ID(), err)
	}
	res := &wigglev1.CountInstancesResponse{}
	for _, state := range []machine.InstanceState{machine.Running, machine.Completed, machine.Failed, machine.Cancelled} {
		if n := counts[state]; n > 0 {
			res.Total += n
			res.ByState = append(res.ByState, &wigglev1.StateCount{State: wigglev1.InstanceState(state), Count: n})
		}
	}
	res.Shards = outcome(shard.ID(), res.GetTotal(), from)
	return res, nil
}

// CancelInstance ends a running instance.
func (s *Server) CancelInstance(ctx context.Context, req *wigglev1.CancelInstanceRequest) (*wigglev1.CancelInstanceResponse, error) {
	shard, id, err := s.instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	if err := clean("reason", req.GetReason(), maxReasonBytes); err != nil {
		return nil, err
	}
	if err := s.check(ctx, shard, id, actionCancel); err != nil {
		return nil, err
	}
	state, err := shard.Cancel(ctx, id, req.GetReason())
	if err != nil {
		return nil, instanceFault(shard.ID(), req.GetInstanceId(), state, err)
	}
	return &wigglev1.CancelInstanceResponse{State: wigglev1.InstanceState(state)}, nil
}

func page(asked int32, otherwise, most int) int {
	if asked <= 0 {
		return otherwise
	}
	return min(int(asked), most)
}

func filter(f *wigglev1.InstanceFilter) store.Filter {
	out := store.Filter{
		Namespace: namespace(f.GetNamespace()), Workflow: f.GetWorkflow(),
		From: moment(f.GetCreatedFrom()), Before: moment(f.GetCreatedBefore()),
	}
	for _, state := range f.GetStates() {
		out.States = append(out.States, machine.InstanceState(state)) //nolint:gosec // an enum
	}
	return out
}
