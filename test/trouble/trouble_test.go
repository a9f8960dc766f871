package trouble

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
)

const (
	// patience bounds what has no bound of its own.
	patience = 90 * time.Second
	// soon is "about a second" on a machine that is busy with other tests.
	soon = 1500 * time.Millisecond
	// recovery bounds how long a shard may take after its database is back.
	recovery = 3 * time.Second
)

func TestMain(m *testing.M) { cluster.Main(m, nil) }

// start starts a cluster for a test.
func start(t *testing.T, cfg cluster.Config) (context.Context, *cluster.Cluster, cluster.Clients) {
	t.Helper()
	return startFor(t, cfg, patience)
}

// startFor is start for a test that may take so long.
func startFor(t *testing.T, cfg cluster.Config, limit time.Duration) (context.Context, *cluster.Cluster, cluster.Clients) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c, err := cluster.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range append(c.Odd(), c.Close()) {
			if err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			t.Logf("logs are in %s", c.Dir)
		} else if err := c.Remove(); err != nil {
			t.Error(err)
		}
	})
	clients, err := cluster.Dial(c.RouterURL())
	if err != nil {
		t.Fatal(err)
	}
	return ctx, c, clients
}

// register registers the workflow as soon as home takes it.
func register(ctx context.Context, t *testing.T, c cluster.Clients) {
	t.Helper()
	if _, err := until(ctx, func() error {
		_, err := c.Workflows.RegisterWorkflow(ctx, &wigglev1.RegisterWorkflowRequest{Definition: oneStep().Proto()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// complete starts an instance on a shard and sees it to its end.
func complete(ctx context.Context, t *testing.T, c *cluster.Cluster, clients cluster.Clients, shard int) {
	t.Helper()
	res, err := clients.Instances.StartInstance(ctx, startOn(c.Topology, shard))
	if err != nil {
		t.Fatalf("start on shard %d: %v", shard, err)
	}
	if _, err := until(ctx, func() error {
		if n, err := work(ctx, clients); err != nil || n == 0 {
			return fmt.Errorf("%d tasks: %w", n, errors.Join(errors.New("no task was done"), err))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	end, err := clients.Instances.WaitInstance(ctx, &wigglev1.WaitInstanceRequest{InstanceId: res.GetInstanceId()})
	if err != nil || end.GetInstance().GetState() != wigglev1.InstanceState_INSTANCE_STATE_COMPLETED {
		t.Fatalf("end on shard %d: %v, %v", shard, end, err)
	}
}

// wantUnavailable makes a call for a shard that is down: UNAVAILABLE, about that
// shard, with a hint when to try again, within about a second.
func wantUnavailable(t *testing.T, what string, shard int, call func() error) {
	t.Helper()
	began := time.Now()
	err := call()
	took := time.Since(began)
	fault, _ := errors.AsType[*faults.Error](err)
	if faults.CodeOf(err) != faults.CodeUnavailable || took > soon {
		t.Errorf("%s on shard %d, which is down, was answered after %s with %v", what, shard, took, err)
		return
	}
	after, ok := fault.RetryAfter()
	if !ok || after <= 0 || after > 5*time.Second {
		t.Errorf("%s on shard %d: the hint when to try again is %s, %t", what, shard, after, ok)
	}
	unknown := errors.Is(err, faults.ErrOutcomeUnknown) // the first call, whose connection broke under it
	if got := fault.ToProto().GetShardUnavailable(); !unknown && got.GetShard() != int32(shard) {
		t.Errorf("%s on shard %d: the fault is %v", what, shard, fault.ToProto())
	}
}

// TestDatabaseDownAtStart: the process says which shard it misses and serves the
// others, and the shard when it comes.
func TestDatabaseDownAtStart(t *testing.T) {
	ctx, c, clients := start(t, cluster.Config{Shards: 2, Processes: 1, Down: []int{1}})
	register(ctx, t, clients)
	complete(ctx, t, c, clients, 0)

	status, body, err := get(ctx, c.InstancesURL(0)+"/readyz")
	if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(body, "shard 1: ") || strings.Contains(body, "shard 0: ") {
		t.Errorf("the instances process is ready as %d %s, %v", status, body, err)
	}
	states, err := shardStates(ctx, c.RouterURL())
	if err != nil || len(states) != 2 || !states[0].Ready || states[1].Ready || states[1].Reason == "" {
		t.Errorf("the router tells of the shards: %+v, %v", states, err)
	}
	if told := warnings(t, c.Instances[0], "shard=1"); told == 0 || told > 3 {
		t.Errorf("the log of the instances process warns %d times of shard 1, want once or so", told)
	}
	req := startOn(c.Topology, 1)
	wantUnavailable(t, "StartInstance", 1, func() error {
		_, err := clients.Instances.StartInstance(ctx, req)
		return err
	})

	if err := c.Databases[1].Start(ctx); err != nil {
		t.Fatal(err)
	}
	took, err := until(ctx, func() error {
		_, err := clients.Instances.StartInstance(ctx, req)
		return err
	})
	if err != nil || took > recovery+2*time.Second { // it is migrated, too
		t.Errorf("shard 1 was served %s after its database came, %v", took, err)
	}
	t.Logf("shard 1 was served %s after its database came", took)
	if _, err := until(ctx, func() error { _, err := work(ctx, clients); return err }); err != nil {
		t.Error(err)
	}
	complete(ctx, t, c, clients, 1)
	if _, err := until(ctx, func() error {
		status, body, err := get(ctx, c.InstancesURL(0)+"/readyz")
		if err == nil && status != http.StatusOK {
			err = errors.New(body)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestDatabaseDownLater: calls for the shard are refused at once with a hint, those
// for the other go on as before, and the shard is back by itself.
func TestDatabaseDownLater(t *testing.T) {
	ctx, c, clients := start(t, cluster.Config{Shards: 2, Processes: 2})
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	register(ctx, t, clients)
	for shard := range 2 {
		complete(ctx, t, c, clients, shard)
	}
	onDown, err := clients.Instances.StartInstance(ctx, startOn(c.Topology, 1))
	if err != nil {
		t.Fatal(err)
	}
	held, err := clients.Workers.PollTasks(ctx, &wigglev1.PollTasksRequest{Worker: "holder", Wait: durationpb.New(2 * time.Second)})
	if err != nil || len(held.GetTasks()) != 1 {
		t.Fatalf("poll: %v, %v", held, err)
	}

	// The other shard is in use all the time.
	var other calls
	use, stop := context.WithCancel(ctx)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for use.Err() == nil {
			var id string
			other.measure("StartInstance", func() error {
				res, err := clients.Instances.StartInstance(ctx, startOn(c.Topology, 0))
				id = res.GetInstanceId()
				return err
			})
			other.measure("GetInstance", func() error {
				_, err := clients.Instances.GetInstance(ctx, &wigglev1.GetInstanceRequest{InstanceId: id})
				return err
			})
			cluster.Pause(use, 5*time.Millisecond)
		}
	}()
	defer func() { stop(); <-finished }()
	cluster.Pause(ctx, time.Second)
	_, usual, _ := other.summary()
	other.reset()

	if err := c.Databases[1].Kill(); err != nil {
		t.Fatal(err)
	}
	seeDown(ctx, t, c, clients, onDown.GetInstanceId(), held.GetTasks()[0])
	seeUnready(ctx, t, c)
	cluster.Pause(ctx, time.Second)
	n, median, longest := other.summary()
	t.Logf("the other shard: median %s before, %s during, longest %s of %d", usual, median, longest, n)
	if n == 0 || median > 4*usual+10*time.Millisecond || longest > time.Second {
		t.Errorf("calls for the other shard took %s (median) and %s (longest of %d), before %s", median, longest, n, usual)
	}

	if err := c.Databases[1].Start(ctx); err != nil {
		t.Fatal(err)
	}
	took, err := until(ctx, func() error {
		_, err := clients.Instances.StartInstance(ctx, startOn(c.Topology, 1))
		return err
	})
	t.Logf("shard 1 was served %s after its database was back", took)
	if err != nil || took > recovery {
		t.Errorf("shard 1 was served %s after its database was back, %v", took, err)
	}
	stop()
	<-finished
	if len(other.failed) > 0 {
		t.Errorf("%d calls for the other shard failed: %v", len(other.failed), other.failed[0])
	}
	if _, err := clients.Instances.GetInstance(ctx, &wigglev1.GetInstanceRequest{InstanceId: onDown.GetInstanceId()}); err != nil {
		t.Errorf("the instance from before: %v", err)
	}
}

// seeDown calls for shard 1, which is down, and over all shards.
func seeDown(ctx context.Context, t *testing.T, c *cluster.Cluster, clients cluster.Clients, id string, task *wigglev1.Task) {
	t.Helper()
	req := startOn(c.Topology, 1)
	for range 2 { // the first call meets connections that break, the second knows
		wantUnavailable(t, "StartInstance", 1, func() error {
			_, err := clients.Instances.StartInstance(ctx, req)
			return err
		})
		wantUnavailable(t, "GetInstance", 1, func() error {
			_, err := clients.Instances.GetInstance(ctx, &wigglev1.GetInstanceRequest{InstanceId: id})
			return err
		})
		wantUnavailable(t, "ReportSteps", 1, func() error {
			res, err := clients.Workers.ReportSteps(ctx, &wigglev1.ReportStepsRequest{Worker: "holder", Reports: []*wigglev1.StepReport{{
				TaskId: task.GetId(), Lease: task.GetLease(), Outcome: &wigglev1.StepReport_Unchanged{Unchanged: &wigglev1.Unchanged{}},
			}}})
			if err != nil {
				return err
			}
			return faultOf(res.GetOutcomes()[0])
		})
		wantUnavailable(t, "Heartbeat", 1, func() error {
			res, err := clients.Workers.Heartbeat(ctx, &wigglev1.HeartbeatRequest{Worker: "holder", Beats: []*wigglev1.Beat{{
				TaskId: task.GetId(), Lease: task.GetLease(),
			}}})
			if err != nil {
				return err
			}
			return faultOf(res.GetOutcomes()[0])
		})
	}
	began := time.Now()
	if n, err := work(ctx, clients); err != nil || n == 0 || time.Since(began) > soon {
		t.Errorf("a poll while shard 1 is down: %d tasks of the other after %s, %v", n, time.Since(began), err)
	}
	began = time.Now()
	part, err := clients.Instances.CountInstances(ctx, &wigglev1.CountInstancesRequest{
		MissingShards: wigglev1.MissingShards_MISSING_SHARDS_PARTIAL,
	})
	if err != nil || part.GetTotal() == 0 || len(part.GetShards()) != 2 || part.GetShards()[1].GetFault() == nil || time.Since(began) > soon {
		t.Errorf("a partial count while shard 1 is down: %v after %s, %v", part, time.Since(began), err)
	}
	if _, err := clients.Instances.CountInstances(ctx, &wigglev1.CountInstancesRequest{}); !errors.Is(err, faults.ErrShardsMissing) {
		t.Errorf("a count while shard 1 is down: %v", err)
	}
}

// warnings counts the warnings in a process's log that have a word in them.
func warnings(t *testing.T, p *cluster.Process, word string) int {
	t.Helper()
	log, err := os.ReadFile(p.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "level=WARN") && strings.Contains(line, word) {
			n++
		}
	}
	return n
}

// seeUnready waits until processes and router tell that shard 1 is missing.
func seeUnready(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	took, err := until(ctx, func() error {
		for i := range c.Instances {
			status, body, err := get(ctx, c.InstancesURL(i)+"/readyz")
			if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(body, "shard 1: ") || strings.Contains(body, "shard 0: ") {
				return fmt.Errorf("%s is ready as %d %s, %w", c.Instances[i].Name, status, body, err)
			}
		}
		states, err := shardStates(ctx, c.RouterURL())
		if err != nil || len(states) != 2 || !states[0].Ready || states[1].Ready || states[1].Reason == "" {
			return fmt.Errorf("the router tells of the shards: %+v, %w", states, err)
		}
		return nil
	})
	if err != nil || took > recovery {
		t.Errorf("that shard 1 is missing was told after %s, %v", took, err)
	}
}

// faultOf is the fault of one outcome of a batch as an error.
func faultOf(o interface{ GetFault() *wigglev1.Fault }) error {
	if f := o.GetFault(); f != nil {
		return faults.FromProto(f)
	}
	return nil
}
