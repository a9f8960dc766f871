package router_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/pagetoken"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
)

// database is what a shard's database holds, as far as a router can tell.
type database struct {
	shard int

	mu        sync.Mutex
	changed   chan struct{}
	instances map[string]*wigglev1.Instance
	ready     map[string][]*wigglev1.Task // by queue
	leased    map[string]*wigglev1.Task
	reports   []string
	defs      []*wiggleinternalv1.StoredDefinition
	events    eventLog
	down      string // why it does not answer
	replicas  []*wigglev1.Replica
}

func newDatabase(shard int) *database {
	return &database{
		shard: shard, changed: make(chan struct{}), instances: map[string]*wigglev1.Instance{},
		ready: map[string][]*wigglev1.Task{}, leased: map[string]*wigglev1.Task{},
	}
}

func (d *database) update(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *database) revision() int64 {
	if n := len(d.defs); n > 0 {
		return d.defs[n-1].GetRevision()
	}
	return 0
}

// addTasks makes tasks ready in a queue.
func (d *database) addTasks(queue string, n int) {
	d.update(func() {
		for range n {
			id := shardid.NewToken(d.shard, ulid.Make())
			d.ready[queue] = append(d.ready[queue], &wigglev1.Task{
				Id: id.String(), Queue: queue, InstanceId: shardid.NewInstance(d.shard, ulid.Make()).String(),
			})
		}
	})
}

func (d *database) counts() (ready, leased int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, tasks := range d.ready {
		ready += len(tasks)
	}
	return ready, len(d.leased)
}

// process is an instances process over some databases.
type process struct {
	wigglev1connect.UnimplementedInstanceServiceHandler
	wigglev1connect.UnimplementedWorkerServiceHandler
	wigglev1connect.UnimplementedWorkflowServiceHandler
	wigglev1connect.UnimplementedEventServiceHandler
	wiggleinternalv1connect.UnimplementedShardServiceHandler

	name   string
	id     string
	shards map[int]*database
	server *rpc.Server
	hints  chan *wiggleinternalv1.WorkHint

	streams  streams
	turnAway atomic.Bool // polls

	mu       sync.Mutex
	calls    []string
	hook     func(ctx context.Context, method string, shard int) error
	draining bool
}

func (p *process) setHook(hook func(ctx context.Context, method string, shard int) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = hook
}

// took lists the calls of a method since the last time, as method@shard.
func (p *process) took(method string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	p.calls = slices.DeleteFunc(p.calls, func(c string) bool {
		if strings.HasPrefix(c, method+"@") {
			list = append(list, c)
			return true
		}
		return false
	})
	return list
}

// enter is what every call goes through. It checks that the header names a shard that the process serves.
func (p *process) enter(ctx context.Context, method string) (*database, error) {
	shard, ok := rpc.ShardFromContext(ctx)
	if !ok {
		return nil, faults.InvalidArgument("%s without a shard", method)
	}
	p.mu.Lock()
	p.calls = append(p.calls, fmt.Sprintf("%s@%d", method, shard))
	hook := p.hook
	p.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, method, shard); err != nil {
			return nil, err
		}
	}
	d := p.shards[shard]
	if d == nil {
		return nil, faults.ShardUnknown(shard)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down != "" {
		return nil, faults.ShardUnavailable(shard, time.Second)
	}
	return d, nil
}

func (p *process) Status(
	ctx context.Context, _ *wiggleinternalv1.StatusRequest,
) (*wiggleinternalv1.StatusResponse, error) {
	p.mu.Lock()
	hook := p.hook
	res := &wiggleinternalv1.StatusResponse{ProcessId: p.id, Release: "test", Draining: p.draining}
	p.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, "Status", -1); err != nil {
			return nil, err
		}
	}
	for id, d := range p.shards {
		d.mu.Lock()
		res.Shards = append(res.Shards, &wiggleinternalv1.ShardStatus{
			Shard: int32(id), Ready: d.down == "", Reason: d.down, DefinitionsRevision: d.revision(), Replicas: d.replicas,
		})
		d.mu.Unlock()
	}
	return res, nil
}

func (p *process) WatchWork(
	ctx context.Context, _ *wiggleinternalv1.WatchWorkRequest, stream *connect.ServerStream[wiggleinternalv1.WatchWorkResponse],
) error {
	if err := stream.Send(&wiggleinternalv1.WatchWorkResponse{}); err != nil {
		return err
	}
	for {
		select {
		case hint := <-p.hints:
			res := &wiggleinternalv1.WatchWorkResponse{Hints: []*wiggleinternalv1.WorkHint{hint}}
			if err := stream.Send(res); err != nil {
				return err
			}
		case <-rpc.Draining(ctx):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *process) hint(shard int, queue string) {
	p.hints <- &wiggleinternalv1.WorkHint{Shard: int32(shard), Namespace: "default", Queue: queue}
}

func (p *process) RegisterDefinition(
	ctx context.Context, req *wiggleinternalv1.RegisterDefinitionRequest,
) (*wiggleinternalv1.RegisterDefinitionResponse, error) {
	d, err := p.enter(ctx, "RegisterDefinition")
	if err != nil {
		return nil, err
	}
	res := &wiggleinternalv1.RegisterDefinitionResponse{Created: true}
	d.update(func() {
		def := proto.CloneOf(req.GetDefinition())
		def.Version = 1
		res.Stored = &wiggleinternalv1.StoredDefinition{
			Namespace: req.GetNamespace(), Definition: def, Fingerprint: []byte{0xab}, Revision: d.revision() + 1,
		}
		d.defs = append(d.defs, res.GetStored())
	})
	return res, nil
}

func (p *process) PutDefinitions(
	ctx context.Context, req *wiggleinternalv1.PutDefinitionsRequest,
) (*wiggleinternalv1.PutDefinitionsResponse, error) {
	d, err := p.enter(ctx, "PutDefinitions")
	if err != nil {
		return nil, err
	}
	res := &wiggleinternalv1.PutDefinitionsResponse{}
	d.update(func() {
		for _, def := range req.GetDefinitions() {
			if def.GetRevision() == d.revision()+1 {
				d.defs = append(d.defs, def)
			}
		}
		res.DefinitionsRevision = d.revision()
	})
	return res, nil
}

func (p *process) ListDefinitions(
	ctx context.Context, req *wiggleinternalv1.ListDefinitionsRequest,
) (*wiggleinternalv1.ListDefinitionsResponse, error) {
	d, err := p.enter(ctx, "ListDefinitions")
	if err != nil {
		return nil, err
	}
	res := &wiggleinternalv1.ListDefinitionsResponse{}
	d.update(func() {
		for _, def := range d.defs {
			if def.GetRevision() > req.GetAfterRevision() && len(res.GetDefinitions()) < 2 { // short pages
				res.Definitions = append(res.Definitions, def)
			}
		}
	})
	return res, nil
}

func (p *process) GetWorkflow(
	ctx context.Context, req *wigglev1.GetWorkflowRequest,
) (*wigglev1.GetWorkflowResponse, error) {
	d, err := p.enter(ctx, "GetWorkflow")
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, def := range d.defs {
		if def.GetDefinition().GetName() == req.GetName() {
			return &wigglev1.GetWorkflowResponse{Definition: def.GetDefinition()}, nil
		}
	}
	return nil, faults.NotFound("workflow", req.GetName())
}

func (p *process) ListWorkflows(
	ctx context.Context, _ *wigglev1.ListWorkflowsRequest,
) (*wigglev1.ListWorkflowsResponse, error) {
	d, err := p.enter(ctx, "ListWorkflows")
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	res := &wigglev1.ListWorkflowsResponse{}
	for _, def := range d.defs {
		res.Workflows = append(res.Workflows, &wigglev1.WorkflowVersion{Name: def.GetDefinition().GetName()})
	}
	return res, nil
}

func (p *process) StartInstances(
	ctx context.Context, req *wigglev1.StartInstancesRequest,
) (*wigglev1.StartInstancesResponse, error) {
	d, err := p.enter(ctx, "StartInstances")
	if err != nil {
		return nil, err
	}
	res := &wigglev1.StartInstancesResponse{}
	d.update(func() {
		for _, start := range req.GetStarts() {
			res.Outcomes = append(res.Outcomes, d.start(start))
		}
	})
	return res, nil
}

func (d *database) start(start *wigglev1.StartInstanceRequest) *wigglev1.StartOutcome {
	known := slices.ContainsFunc(d.defs, func(def *wiggleinternalv1.StoredDefinition) bool {
		return def.GetDefinition().GetName() == start.GetWorkflow()
	})
	if !known && len(d.defs) > 0 {
		fault := faults.NotFound("workflow", start.GetWorkflow()).ToProto()
		return &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Fault{Fault: fault}}
	}
	id := fmt.Sprintf("wfi.s%d.%s", d.shard, start.GetUlid())
	_, exists := d.instances[id]
	if !exists {
		d.instances[id] = &wigglev1.Instance{
			Id: id, Namespace: "default", Workflow: start.GetWorkflow(), State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING,
			CreatedAt: timestamppb.New(time.Now().Truncate(time.Microsecond)),
		}
	}
	return &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Started{
		Started: &wigglev1.StartInstanceResponse{InstanceId: id, Version: 1, Created: !exists},
	}}
}

func (p *process) instance(ctx context.Context, method, id string) (*database, *wigglev1.Instance, error) {
	d, err := p.enter(ctx, method)
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	inst := d.instances[id]
	if inst == nil {
		return nil, nil, faults.NotFound("instance", id)
	}
	return d, proto.CloneOf(inst), nil
}

func (p *process) GetInstance(
	ctx context.Context, req *wigglev1.GetInstanceRequest,
) (*wigglev1.GetInstanceResponse, error) {
	_, inst, err := p.instance(ctx, "GetInstance", req.GetInstanceId())
	return &wigglev1.GetInstanceResponse{Instance: inst}, err
}

func (p *process) GetHistory(
	ctx context.Context, req *wigglev1.GetHistoryRequest,
) (*wigglev1.GetHistoryResponse, error) {
	_, _, err := p.instance(ctx, "GetHistory", req.GetInstanceId())
	return &wigglev1.GetHistoryResponse{NextPageToken: req.GetPageToken()}, err
}

func (p *process) CancelInstance(
	ctx context.Context, req *wigglev1.CancelInstanceRequest,
) (*wigglev1.CancelInstanceResponse, error) {
	d, _, err := p.instance(ctx, "CancelInstance", req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	d.end(req.GetInstanceId(), wigglev1.InstanceState_INSTANCE_STATE_CANCELLED)
	return &wigglev1.CancelInstanceResponse{State: wigglev1.InstanceState_INSTANCE_STATE_CANCELLED}, nil
}

func (d *database) end(id string, state wigglev1.InstanceState) {
	d.update(func() { d.instances[id].State = state })
}

func (p *process) WaitInstance(
	ctx context.Context, req *wigglev1.WaitInstanceRequest,
) (*wigglev1.WaitInstanceResponse, error) {
	d, _, err := p.instance(ctx, "WaitInstance", req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(req.GetWait().AsDuration())
	defer timer.Stop()
	for {
		d.mu.Lock()
		inst, changed := proto.CloneOf(d.instances[req.GetInstanceId()]), d.changed
		d.mu.Unlock()
		if inst.GetState() != wigglev1.InstanceState_INSTANCE_STATE_RUNNING {
			return &wigglev1.WaitInstanceResponse{Instance: inst, Ended: true}, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return &wigglev1.WaitInstanceResponse{Instance: inst}, nil
		case <-rpc.Draining(ctx):
			return &wigglev1.WaitInstanceResponse{Instance: inst}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *process) ListInstances(
	ctx context.Context, req *wigglev1.ListInstancesRequest,
) (*wigglev1.ListInstancesResponse, error) {
	d, err := p.enter(ctx, "ListInstances")
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	key := func(i *wigglev1.Instance) pagetoken.Token {
		id, _ := shardid.Parse(i.GetId())
		u, _ := id.ULID()
		return pagetoken.Token{CreatedAt: i.GetCreatedAt().AsTime(), ULID: u, FilterHash: pagetoken.FilterHash(req.GetFilter())}
	}
	var rows []*wigglev1.Instance
	for _, inst := range d.instances {
		if req.GetPageToken() != "" {
			after, err := pagetoken.DecodeFor(req.GetPageToken(), req.GetFilter())
			if err != nil {
				return nil, faults.InvalidArgument("%v", err)
			}
			if pagetoken.Compare(key(inst), after) <= 0 {
				continue
			}
		}
		rows = append(rows, proto.CloneOf(inst))
	}
	slices.SortFunc(rows, func(a, b *wigglev1.Instance) int { return pagetoken.Compare(key(a), key(b)) })
	res := &wigglev1.ListInstancesResponse{Instances: rows, Shards: d.outcome()}
	if n := int(req.GetPageSize()); len(rows) > n {
		res.Instances, res.NextPageToken = rows[:n], pagetoken.Encode(key(rows[n-1]))
	}
	return res, nil
}

func (p *process) CountInstances(
	ctx context.Context, _ *wigglev1.CountInstancesRequest,
) (*wigglev1.CountInstancesResponse, error) {
	d, err := p.enter(ctx, "CountInstances")
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := int64(len(d.instances))
	return &wigglev1.CountInstancesResponse{
		Total: n, ByState: []*wigglev1.StateCount{{State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING, Count: n}},
		Shards: d.outcome(),
	}, nil
}

// outcome tells who has answered: the last replica if there is one.
func (d *database) outcome() []*wigglev1.ShardOutcome {
	out := &wigglev1.ShardOutcome{Shard: int32(d.shard), Source: "primary"}
	if n := len(d.replicas); n > 0 {
		out.Source, out.Staleness = fmt.Sprintf("replica %d", n-1), d.replicas[n-1].GetLag()
	}
	return []*wigglev1.ShardOutcome{out}
}
