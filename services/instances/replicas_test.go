package instances_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/topology"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/instances"
)

// envTries is how often TestReplicas starts an instance and reads it at once.
const (
	envTries     = "WIGGLE_TEST_REPLICA_TRIES"
	defaultTries = 2000
)

// replicated is a process over one shard that has a streaming replica.
type replicated struct {
	*testing.T

	primary, replica *devstack.Server
	database         *postgres.Pool // the primary's
	control          *postgres.Pool // the replica's, for orders
	service          *instances.Service
	client           *http.Client
	url              string
	instances        wigglev1connect.InstanceServiceClient
	workflows        wigglev1connect.WorkflowServiceClient
	shards           wiggleinternalv1connect.ShardServiceClient
}

func newReplicated(t *testing.T, fallback topology.Fallback, bound time.Duration) *replicated {
	t.Helper()
	r := &replicated{T: t}
	var err error
	if r.primary, err = pgtest.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pgtest.StopServer(r.primary) })
	if err := r.primary.CreateDatabase(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	if r.replica, err = pgtest.StartReplica(t.Context(), r.primary, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pgtest.StopServer(r.replica) })
	r.database = pgtest.OpenPool(t, r.primary.URL("w"))
	r.control = pgtest.OpenPool(t, r.replica.URL("postgres"), func(c *postgres.MemberConfig) { c.ReadOnly = true })
	r.serve(r.topology(fallback, bound))
	return r
}

func (r *replicated) topology(fallback topology.Fallback, bound time.Duration) *topology.Topology {
	r.Helper()
	text, err := json.Marshal(topology.Document{
		Generations: []topology.DocumentGeneration{{ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{0: 1}}},
		Shards: []topology.DocumentShard{{
			State: topology.StateActive, Roles: topology.Roles{topology.RoleInstances, topology.RoleHome, topology.RoleAuth},
			Settings: topology.Settings{ReplicaFallback: fallback, MaxReplicaLagMillis: int(bound.Milliseconds()), ReplicaPool: 4},
			Primary:  &topology.DocumentMember{URL: topology.NewCredential(r.primary.URL("w"))},
			Replicas: []topology.DocumentMember{{URL: topology.NewCredential(r.replica.URL("w")), Zone: "az-b"}},
		}},
	})
	if err != nil {
		r.Fatal(err)
	}
	top, err := topology.Parse(text, func(string) (string, bool) { return "", false })
	if err != nil {
		r.Fatal(err)
	}
	return top
}

// serve runs the process until the test ends.
func (r *replicated) serve(top *topology.Topology) {
	r.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	if r.service, err = instances.New(instances.Config{Topology: top, Listener: listener, Zone: "az-b", Grace: time.Second}); err != nil {
		r.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(r.Context()))
	done := make(chan error, 1)
	go func() { done <- r.service.Run(ctx) }()
	opts, err := rpc.NewClientOptions(rpc.ClientConfig{})
	if err != nil {
		r.Fatal(err)
	}
	r.client, r.url = rpc.NewHTTPClient(rpc.ClientConfig{}), "http://"+listener.Addr().String()
	r.instances = wigglev1connect.NewInstanceServiceClient(r.client, r.url, opts...)
	r.workflows = wigglev1connect.NewWorkflowServiceClient(r.client, r.url, opts...)
	r.shards = wiggleinternalv1connect.NewShardServiceClient(r.client, r.url, opts...)
	r.Cleanup(func() {
		r.client.CloseIdleConnections()
		stop()
		if err := <-done; err != nil {
			r.Error(err)
		}
	})
	r.await("the shard is served", func() bool { return r.service.Status().GetShards()[0].GetReady() })
}

// ctx names the shard.
func (r *replicated) ctx() context.Context { return rpc.WithShard(r.Context(), 0) }

func (r *replicated) await(what string, cond func() bool) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !cond() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			r.Fatalf("not in time: %s; %v", what, r.status())
		}
	}
}

// status is how the process sees the replica.
func (r *replicated) status() *wigglev1.Replica {
	return r.service.Status().GetShards()[0].GetReplicas()[0]
}

// beating has a leader's heart beat until the test ends.
func (r *replicated) beating() {
	ctx, cancel := context.WithCancel(r.Context())
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			_, err := r.database.Exec(ctx, "update wiggle_heartbeat set beat = beat + 1, beaten_at = clock_timestamp()")
			if err != nil && ctx.Err() == nil {
				r.Error(err)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	r.Cleanup(func() { cancel(); done.Wait() })
}

// register makes a workflow of one step known.
func (r *replicated) register(name string) {
	r.Helper()
	_, err := r.shards.RegisterDefinition(r.ctx(), &internalv1.RegisterDefinitionRequest{Definition: &wigglev1.Definition{
		Name: name, Start: "a", Nodes: map[string]*wigglev1.Node{
			"a":   {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: "end"}}},
			"end": {Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}},
		},
	}})
	if err != nil {
		r.Fatal(err)
	}
}

// start starts an instance and returns its id.
func (r *replicated) start() (string, error) {
	res, err := r.instances.StartInstance(r.ctx(), &wigglev1.StartInstanceRequest{
		Workflow: "flow", Ulid: strings.ToLower(ulid.Make().String()),
	})
	return res.GetInstanceId(), err
}

// listed lists a page, and tells where it comes from.
func (r *replicated) listed(req *wigglev1.ListInstancesRequest) (*wigglev1.ListInstancesResponse, *wigglev1.ShardOutcome) {
	r.Helper()
	res, err := r.instances.ListInstances(r.ctx(), req)
	if err != nil {
		r.Fatal(err)
	}
	return res, res.GetShards()[0]
}

// pause pauses the replay on the replica.
func (r *replicated) pause() {
	r.Helper()
	if _, err := r.control.Exec(r.Context(), "select pg_wal_replay_pause()"); err != nil {
		r.Fatal(err)
	}
	r.await("the replay is paused", func() bool {
		var state string
		err := r.control.QueryRow(r.Context(), "select pg_get_wal_replay_pause_state()").Scan(&state)
		return err == nil && state == "paused"
	})
}

// TestReplicas is what callers see of a replica that lags as far as it may: lists from it, and everything else as it is.
func TestReplicas(t *testing.T) {
	t.Parallel()
	r := newReplicated(t, topology.FallbackFail, time.Hour)
	r.beating()
	r.register("flow")
	id, err := r.start()
	if err != nil {
		t.Fatal(err)
	}
	r.await("the replica serves, and has the instance", func() bool {
		if !r.status().GetServing() {
			return false
		}
		res, _ := r.listed(&wigglev1.ListInstancesRequest{})
		return len(res.GetInstances()) == 1
	})
	r.pause()

	list, of := r.listed(&wigglev1.ListInstancesRequest{})
	if of.GetSource() != "replica 0" || of.GetStaleness() == nil || of.GetCount() != 1 || list.GetInstances()[0].GetId() != id {
		t.Errorf("list: %v", of)
	}
	counts, err := r.instances.CountInstances(r.ctx(), &wigglev1.CountInstancesRequest{})
	if err != nil || counts.GetTotal() != 1 || counts.GetShards()[0].GetSource() != "replica 0" {
		t.Errorf("count: %v, %v", counts, err)
	}
	r.register("later")
	versions, err := r.workflows.ListWorkflows(r.ctx(), &wigglev1.ListWorkflowsRequest{})
	if err != nil || len(versions.GetWorkflows()) != 1 {
		t.Errorf("workflows: %v, %v", versions, err)
	}
	if res, err := r.workflows.GetWorkflow(r.ctx(), &wigglev1.GetWorkflowRequest{Name: "later"}); err != nil || res.GetDefinition() == nil {
		t.Errorf("a workflow that the replica does not have: %v", err)
	}

	getInstances(r, id)

	// REP-7: get after start never answers NOT_FOUND, nor does its history.
	getAfterStart(r)
	if _, of := r.listed(&wigglev1.ListInstancesRequest{}); of.GetSource() != "replica 0" || of.GetCount() != 1 {
		t.Errorf("the replica was to lag all the time: %v", of)
	}

	// SHD-26: a page that goes on from one that is newer than the replica for sure is the primary's, so it skips nothing.
	page, err := r.instances.ListInstances(r.ctx(), &wigglev1.ListInstancesRequest{PageSize: 1, PageToken: newestToken(r)})
	if err != nil || page.GetShards()[0].GetSource() != "primary" || len(page.GetInstances()) != 1 {
		t.Errorf("the page behind the newest: %v, %v", page.GetShards(), err)
	}
	missing := strings.Replace(id, id[len(id)-3:], "zzz", 1)
	for name, read := range map[string]func() error{
		"instance": func() error {
			_, err := r.instances.GetInstance(r.ctx(), &wigglev1.GetInstanceRequest{InstanceId: missing})
			return err
		},
		"history": func() error {
			_, err := r.instances.GetHistory(r.ctx(), &wigglev1.GetHistoryRequest{InstanceId: missing})
			return err
		},
	} {
		if err := read(); !errors.Is(err, faults.ErrNotFound) {
			t.Errorf("%s that is nowhere: %v", name, err)
		}
	}

	// REP-3: without the replica, lists are told to come back; what is the primary's goes on.
	r.replica.Kill()
	r.await("its death is noticed", func() bool { return !r.status().GetServing() })
	_, err = r.instances.ListInstances(r.ctx(), &wigglev1.ListInstancesRequest{})
	if !errors.Is(err, faults.ErrShardUnavailable) || !strings.Contains(err.Error(), "shard 0 has no replica that is healthy") {
		t.Errorf("list: %v", err)
	}
	if id, err = r.start(); err != nil {
		t.Error(err)
	}
	if _, err := r.instances.GetInstance(r.ctx(), &wigglev1.GetInstanceRequest{InstanceId: id}); err != nil {
		t.Error(err)
	}
}

// getInstances reads an instance that the replica has as it was before the primary cancelled it, and one that it lacks.
func getInstances(r *replicated, old string) {
	r.Helper()
	fresh, err := r.start()
	if err != nil {
		r.Fatal(err)
	}
	if _, err := r.instances.CancelInstance(r.ctx(), &wigglev1.CancelInstanceRequest{InstanceId: old}); err != nil {
		r.Fatal(err)
	}
	now, err := r.instances.GetInstance(r.ctx(), &wigglev1.GetInstanceRequest{InstanceId: old})
	if err != nil {
		r.Fatal(err)
	}
	const running, cancelled = wigglev1.InstanceState_INSTANCE_STATE_RUNNING, wigglev1.InstanceState_INSTANCE_STATE_CANCELLED
	for _, test := range []struct {
		least int32
		want  wigglev1.InstanceState
	}{{0, running}, {now.GetInstance().GetRevision(), cancelled}} {
		res, err := r.instances.GetInstances(r.ctx(), &wigglev1.GetInstancesRequest{Instances: []*wigglev1.InstanceRef{
			{InstanceId: old, MinRevision: test.least},
			{InstanceId: fresh},
			{InstanceId: strings.Replace(fresh, fresh[len(fresh)-3:], "zzz", 1)},
		}})
		if err != nil {
			r.Fatal(err)
		}
		got := res.GetOutcomes()
		if got[0].GetInstance().GetState() != test.want || got[1].GetInstance().GetState() != running || got[2].GetFault().GetNotFound() == nil {
			r.Errorf("at revision %d or later: %v", test.least, got)
		}
	}
	scan, err := wiggleinternalv1connect.NewScanServiceClient(r.client, r.url).ScanInstances(r.ctx(), &internalv1.ScanInstancesRequest{})
	if err != nil || len(scan.GetInstances()) != 1 || !scan.GetLast() {
		r.Errorf("a scan of the replica: %v, %v", scan, err)
	}
}

// newestToken is a page token behind the newest instance, as the primary would give it.
func newestToken(r *replicated) string {
	r.Helper()
	primary := &replicated{T: r.T, primary: r.primary, replica: r.replica}
	top := r.topology(topology.FallbackPrimary, time.Millisecond) // never in time
	primary.serve(top)
	res, of := primary.listed(&wigglev1.ListInstancesRequest{PageSize: 1})
	if of.GetSource() != "primary" {
		r.Fatalf("listed by %v", of)
	}
	return res.GetNextPageToken()
}

// getAfterStart starts instances and reads each at once.
func getAfterStart(r *replicated) {
	r.Helper()
	tries := defaultTries
	if text := os.Getenv(envTries); text != "" {
		var err error
		if tries, err = strconv.Atoi(text); err != nil {
			r.Fatalf("%s: %v", envTries, err)
		}
	}
	const callers = 8
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range tries / callers {
				if err := getOne(r); err != nil {
					r.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func getOne(r *replicated) error {
	id, err := r.start()
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if _, err := r.instances.GetInstance(r.ctx(), &wigglev1.GetInstanceRequest{InstanceId: id}); err != nil {
		return fmt.Errorf("get after start: %w", err)
	}
	history, err := r.instances.GetHistory(r.ctx(), &wigglev1.GetHistoryRequest{InstanceId: id})
	if err != nil {
		return fmt.Errorf("history after start: %w", err)
	}
	if len(history.GetEntries()) == 0 {
		return fmt.Errorf("instance %s has no history", id)
	}
	return nil
}
