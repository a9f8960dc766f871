package trouble

import (
	"context"
	"slices"
	"testing"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
)

const (
	// napTime is longer than a process takes to stop.
	napTime = 1700 * time.Millisecond
	// apart keeps naps out of a phase that end when the next begins.
	apart = 300 * time.Millisecond
	// tickTime is how often processes look at a shard, and termTime how long the
	// lease on sweeping it lasts (package sweep). A busy machine adds slack.
	tickTime, termTime, slack = 2 * time.Second, 5 * time.Second, 1500 * time.Millisecond
)

// nap is a workflow that needs no worker.
func nap() *wiggle.Definition {
	return wiggle.Define("nap", func(f *wiggle.Flow) { f.Sleep(napTime) })
}

// naps starts instances all the time.
type naps struct {
	clients cluster.Clients
	ids     []string
	failed  []error
}

func (n *naps) run(ctx, use context.Context) {
	for cluster.Pause(use, 25*time.Millisecond) {
		res, err := n.clients.Instances.StartInstance(ctx, &wigglev1.StartInstanceRequest{Workflow: "nap"})
		if err != nil {
			n.failed = append(n.failed, err)
			continue
		}
		n.ids = append(n.ids, res.GetInstanceId())
	}
}

// late tells how late each nap ended that was over within a span of time, sorted.
func (n *naps) late(ctx context.Context, t *testing.T, from, to time.Time) []time.Duration {
	t.Helper()
	var late []time.Duration
	for _, id := range n.ids {
		res, err := n.clients.Instances.WaitInstance(ctx, &wigglev1.WaitInstanceRequest{InstanceId: id})
		in := res.GetInstance()
		if err != nil || in.GetState() != wigglev1.InstanceState_INSTANCE_STATE_COMPLETED {
			t.Fatalf("nap %s: %v, %v", id, in, err)
		}
		due := in.GetCreatedAt().AsTime().Add(napTime)
		if due.After(from) && due.Before(to) {
			late = append(late, in.GetEndedAt().AsTime().Sub(due))
		}
	}
	slices.Sort(late)
	return late
}

// TestTimersOutliveProcesses: what a process had to wake is woken by another, soon
// after it has stopped and within the term of its lease after it was killed (ENG-19).
func TestTimersOutliveProcesses(t *testing.T) {
	ctx, c, clients := start(t, cluster.Config{Shards: 1, Processes: 2})
	waitProcesses(ctx, t, c, 2)
	if _, err := clients.Workflows.RegisterWorkflow(ctx, &wigglev1.RegisterWorkflowRequest{Definition: nap().Proto()}); err != nil {
		t.Fatal(err)
	}
	n := &naps{clients: clients}
	use, stop := context.WithCancel(ctx)
	finished := make(chan struct{})
	go func() { defer close(finished); n.run(ctx, use) }()
	defer func() { stop(); <-finished }()

	begun := time.Now()
	leave := func(p *cluster.Process, pause time.Duration) {
		t.Helper()
		if err := p.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		cluster.Pause(ctx, pause)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		waitProcesses(ctx, t, c, 2)
	}
	cluster.Pause(ctx, napTime+time.Second)
	left := time.Now()
	leave(c.Instances[0], tickTime+slack/3) // from here on the second one sweeps
	leave(c.Instances[1], tickTime+slack/3) // and from here on the first
	killed := time.Now()
	c.Instances[0].Kill()
	cluster.Pause(ctx, termTime+tickTime)
	stop()
	<-finished

	if len(n.failed) > 0 {
		t.Errorf("%d starts failed: %v", len(n.failed), n.failed[0])
	}
	for _, phase := range []struct {
		name     string
		from, to time.Time
		most     time.Duration
	}{
		{"in peace", begun, left.Add(-apart), 500 * time.Millisecond},
		{"while the processes were stopped", left, killed.Add(-apart), tickTime + slack},
		{"after the one that sweeps was killed", killed, killed.Add(time.Minute), termTime + tickTime + slack},
	} {
		late := n.late(ctx, t, phase.from, phase.to)
		if len(late) == 0 {
			t.Errorf("no nap was over %s", phase.name)
			continue
		}
		median, most := late[len(late)/2], late[len(late)-1]
		t.Logf("%s %d naps ended late by %s (median), %s at most", phase.name, len(late), median, most)
		if late[0] < 0 || most > phase.most {
			t.Errorf("%s naps ended late by %s to %s, want 0 to %s", phase.name, late[0], most, phase.most)
		}
	}
}
