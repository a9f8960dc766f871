package router_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// workStream is a worker's stream to the router.
type workStream struct {
	*cluster

	inner *connect.BidiStreamForClientSimple[wigglev1.WorkRequest, wigglev1.WorkResponse]
	leave context.CancelFunc
	in    chan *wigglev1.WorkResponse
	ended chan error
}

// work opens a stream for a worker of the queue q and comes to rest.
func (c *cluster) work(held ...*wigglev1.TaskLease) *workStream {
	c.t.Helper()
	return c.workBy(c.workers, &wigglev1.WorkHello{Worker: "w", Queues: []string{"q"}, Held: held})
}

func (c *cluster) workBy(client wigglev1connect.WorkerServiceClient, hello *wigglev1.WorkHello) *workStream {
	c.t.Helper()
	return c.workIn(c.t.Context(), client, hello)
}

// workIn opens a stream whose context carries the headers of its call.
func (c *cluster) workIn(ctx context.Context, client wigglev1connect.WorkerServiceClient, hello *wigglev1.WorkHello) *workStream {
	c.t.Helper()
	ctx, leave := context.WithCancel(ctx)
	inner, err := client.Work(ctx)
	if err != nil {
		leave()
		c.t.Fatal(err)
	}
	// The transport sees that ctx is done when it has something to send.
	context.AfterFunc(ctx, func() { _ = inner.CloseRequest() })
	w := &workStream{cluster: c, inner: inner, leave: leave, in: make(chan *wigglev1.WorkResponse, 10_000), ended: make(chan error, 1)}
	if hello != nil {
		w.send(&wigglev1.WorkRequest{Hello: hello})
	}
	return w
}

// read receives in the background.
func (w *workStream) read() {
	for {
		res, err := w.inner.Receive()
		if err != nil {
			w.ended <- err
			return
		}
		w.in <- res
	}
}

// reading has the stream read.
func (w *workStream) reading() *workStream {
	go w.read()
	w.settle()
	return w
}

// send sends a message and comes to rest.
func (w *workStream) send(req *wigglev1.WorkRequest) {
	w.t.Helper()
	if err := w.inner.Send(req); err != nil && !errors.Is(err, io.EOF) {
		w.t.Fatal(err)
	}
	w.settle()
}

// got adds up what has come.
func (w *workStream) got() *wigglev1.WorkResponse {
	w.settle()
	all := &wigglev1.WorkResponse{}
	for {
		select {
		case res := <-w.in:
			all.Tasks = append(all.Tasks, res.GetTasks()...)
			all.Reported = append(all.Reported, res.GetReported()...)
			all.Failed = append(all.Failed, res.GetFailed()...)
			all.Beats = append(all.Beats, res.GetBeats()...)
			all.Released = append(all.Released, res.GetReleased()...)
			all.Revoked += res.GetRevoked()
			all.Draining = all.GetDraining() || res.GetDraining()
		default:
			return all
		}
	}
}

// over returns the error with which the stream has ended.
func (w *workStream) over() error {
	w.t.Helper()
	w.settle()
	select {
	case err := <-w.ended:
		return err
	default:
		w.t.Fatal("the stream goes on")
		return nil
	}
}

func reports(tasks ...*wigglev1.Task) *wigglev1.WorkRequest {
	req := &wigglev1.WorkRequest{}
	for _, t := range tasks {
		req.Reports = append(req.Reports, &wigglev1.StepReport{TaskId: t.GetId(), Lease: t.GetLease()})
	}
	return req
}

func tokenOn(shard int) string { return shardid.NewToken(shard, ulid.Make()).String() }

// preferred finds the process of a shard to which its work goes, and one that serves it too.
func (c *cluster) preferred(shard int) (first, second *process) {
	c.t.Helper()
	for _, p := range c.processes {
		if slices.Contains(strings.Fields(p.words(shard)), "credits=1") {
			first = p
		} else {
			second = p
		}
	}
	if first == nil {
		c.t.Fatalf("no process was given the credit of shard %d", shard)
	}
	return first, second
}

// TestStreamReachesEveryShard: credits are shared, tasks come from all shards, reports go
// to theirs with the credits that they free, and what was confirmed is told to each shard
// in its own count.
func TestStreamReachesEveryShard(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		for _, d := range c.databases {
			d.addTasks("q", 5)
		}
		w := c.work().reading()
		w.send(&wigglev1.WorkRequest{Credits: 6})
		got := w.got()
		if len(got.GetTasks()) != 6 {
			t.Fatalf("6 credits brought %d tasks", len(got.GetTasks()))
		}
		for i := range 3 {
			if words := c.processes[fmt.Sprintf("p%d", i)].words(i); !strings.HasPrefix(words, "credits=2") {
				t.Errorf("shard %d was told %q", i, words)
			}
		}
		var of1 []*wigglev1.Task
		for _, task := range got.GetTasks() {
			if strings.HasPrefix(task.GetId(), "tok.s1.") {
				of1 = append(of1, task)
			}
		}
		req := reports(of1...)
		req.Credits, req.Received = 2, 6
		w.send(req)
		if words := c.processes["p1"].words(1); words != "reports=2 credits=2 received=2" {
			t.Errorf("shard 1 was told %q", words)
		}
		got = w.got()
		if len(got.GetReported()) != 2 || got.GetReported()[0].GetFault() != nil || len(got.GetTasks()) != 2 {
			t.Errorf("got %v", got)
		}
	})
}

// TestStreamSplitsBatches: one message for several shards is answered item by item, with
// the errors of those that go nowhere (SHD-22).
func TestStreamSplitsBatches(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		for _, d := range c.databases {
			d.addTasks("q", 1)
		}
		w := c.work().reading()
		w.send(&wigglev1.WorkRequest{Credits: 3})
		req := reports(w.got().GetTasks()...)
		if len(req.GetReports()) != 3 {
			t.Fatalf("got %v", req)
		}
		ids := map[string]faults.Code{
			tokenOn(7): faults.CodeUnavailable, tokenOn(9): faults.CodeNotFound, "nonsense": faults.CodeInvalidArgument,
			tokenOn(1): faults.CodeAborted,
		}
		for id := range ids {
			req.Reports = append(req.Reports, &wigglev1.StepReport{TaskId: id, Lease: "lease of " + id})
			req.Failures = append(req.Failures, &wigglev1.FailTaskRequest{TaskId: tokenOn(7), Lease: "f"})
		}
		req.Beats = []*wigglev1.Beat{{TaskId: "nonsense", Lease: "b"}}
		req.Releases = []*wigglev1.TaskLease{{TaskId: tokenOn(9), Lease: "r"}}
		w.send(req)
		got := w.got()
		if len(got.GetReported()) != 7 || len(got.GetFailed()) != 4 || len(got.GetBeats()) != 1 || len(got.GetReleased()) != 1 {
			t.Fatalf("got %v", got)
		}
		for _, o := range got.GetReported() {
			want, bad := ids[o.GetTaskId()]
			switch {
			case !bad && o.GetFault() != nil:
				t.Errorf("%v", o)
			case bad && (faults.FromProto(o.GetFault()).Code() != want || o.GetLease() != "lease of "+o.GetTaskId()):
				t.Errorf("%v, want code %v", o, want)
			}
		}
		if got.GetFailed()[0].GetLease() != "f" || got.GetBeats()[0].GetLease() != "b" || got.GetReleased()[0].GetLease() != "r" {
			t.Errorf("leases are missing: %v", got)
		}
	})
}

// TestStreamWithOneCredit: with fewer credits than shards, a hint brings the credit to the
// shard that has work, and the safety net finds work without a hint (WRK-13).
func TestStreamWithOneCredit(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		w := c.work().reading()
		w.send(&wigglev1.WorkRequest{Credits: 1})
		for round := range 9 {
			shard := (round * 2) % 3
			c.databases[shard].addTasks("q", 1)
			if round < 6 {
				c.processes[fmt.Sprintf("p%d", shard)].made(shard)
			}
			begin := time.Now()
			got := w.got()
			for len(got.GetTasks()) == 0 && time.Since(begin) < 40*time.Second {
				time.Sleep(50 * time.Millisecond)
				got = w.got()
			}
			if len(got.GetTasks()) != 1 || round < 6 && time.Since(begin) > time.Second {
				t.Fatalf("round %d: shard %d has a task; got %v after %v", round, shard, got, time.Since(begin))
			}
			req := reports(got.GetTasks()...)
			req.Credits = 1
			w.send(req)
			if got := w.got(); len(got.GetReported()) != 1 || len(got.GetTasks()) != 0 {
				t.Fatalf("got %v", got)
			}
		}
	})
}

// TestStreamHints: a hint of another process than the stream's has the stream's look; one
// of the stream's own need not, and neither brings more than one stream of a class to it.
func TestStreamHints(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0}, "b": {0}}, func(c *cluster) {
		t := c.t
		var all []*workStream
		for range 5 {
			w := c.work().reading()
			w.send(&wigglev1.WorkRequest{Credits: 1})
			all = append(all, w)
		}
		own, other := c.preferred(0)
		own.words(0)
		c.databases[0].addTasks("q", 1)
		own.hint(0, "q")
		c.settle()
		if words := own.words(0); words != "" {
			t.Errorf("the process that knows of the task was told %q", words)
		}
		other.hint(0, "q")
		c.settle()
		if words := own.words(0); words != "look" {
			t.Errorf("one of 5 streams should look, and was told %q", words)
		}
		n := 0
		for _, w := range all {
			n += len(w.got().GetTasks())
		}
		if n != 1 {
			t.Errorf("%d streams got the task", n)
		}
	})
}

// TestIdleStreamsCostNothing: streams without work make one of them look at each shard
// every few seconds, however many they are (WRK-13).
func TestIdleStreamsCostNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		var all []*workStream
		for range 100 {
			w := c.work().reading()
			w.send(&wigglev1.WorkRequest{Credits: 9})
			all = append(all, w)
		}
		c.processes["p1"].words(1)
		time.Sleep(30 * time.Second)
		c.settle()
		words := strings.Fields(c.processes["p1"].words(1))
		if len(words) < 4 || len(words) > 8 || slices.ContainsFunc(words, func(w string) bool { return w != "look" }) {
			t.Errorf("in 30 s 100 idle streams told a shard %q", words)
		}
		c.databases[1].addTasks("q", 1)
		time.Sleep(8 * time.Second)
		n := 0
		for _, w := range all {
			n += len(w.got().GetTasks())
		}
		if n != 1 {
			t.Errorf("a task without a hint came %d times", n)
		}
	})
}

// TestStreamOfASilentReader: for a worker that grants credits and does not read, a bounded
// number of bytes waits, and nothing is read of it.
func TestStreamOfASilentReader(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		const size, n = 1 << 20, 100
		p := c.processes["p1"]
		p.streams.pad = size
		c.databases[1].addTasks("q", n)
		w := c.work()
		for range n { // a task a time
			if err := w.inner.Send(&wigglev1.WorkRequest{Credits: 3, Look: true}); err != nil {
				t.Fatal(err)
			}
			c.settle()
		}
		if _, leased := c.databases[1].counts(); leased == 0 || leased > 40 {
			t.Errorf("%d MiB were taken for a worker that does not read", leased)
		}
		w.reading()
		tasks := len(w.got().GetTasks())
		for range 100 {
			time.Sleep(time.Second)
			tasks += len(w.got().GetTasks())
		}
		if tasks != n {
			t.Errorf("%d of %d tasks came in the end", tasks, n)
		}
	})
}

// TestStreamRefusals: what breaks the rules ends the stream with INVALID_ARGUMENT.
func TestStreamRefusals(t *testing.T) {
	t.Parallel()
	hello := &wigglev1.WorkHello{Worker: "w"}
	many := &wigglev1.WorkRequest{}
	for range 1001 {
		many.Releases = append(many.Releases, &wigglev1.TaskLease{TaskId: tokenOn(0)})
	}
	for name, play := range map[string][]*wigglev1.WorkRequest{
		"no hello":      {{Credits: 1}},
		"nameless":      {{Hello: &wigglev1.WorkHello{}}},
		"hello twice":   {{Hello: hello}, {Hello: hello}},
		"minus":         {{Hello: hello}, {Credits: -1}},
		"many credits":  {{Hello: hello}, {Credits: 60_000}, {Credits: 60_000}},
		"many items":    {{Hello: hello}, many},
		"received more": {{Hello: hello}, {Received: 1}},
	} {
		inBubble(t, oneEach, func(c *cluster) {
			w := c.workBy(c.workers, nil).reading()
			for _, req := range play {
				w.send(req)
			}
			if err := w.over(); !errors.Is(err, faults.ErrInvalidArgument) {
				c.t.Errorf("%s: the stream ended with %v", name, err)
			}
		})
	}
}

// TestStreamSpeaksJSON: a client of connect+json gets the same over the same stream.
func TestStreamSpeaksJSON(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.processes["p1"].streams.pad = 3
		c.databases[1].addTasks("q", 1)
		opts, err := rpc.NewClientOptions(rpc.ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		opts = append(opts, connect.WithCodec(rpc.NewClientJSONCodec(rpc.NewPayloads())))
		w := c.workBy(wigglev1connect.NewWorkerServiceClient(c.http, "http://router", opts...), &wigglev1.WorkHello{
			Worker: "w", Queues: []string{"q"},
		}).reading()
		w.send(&wigglev1.WorkRequest{Credits: 3})
		got := w.got()
		if len(got.GetTasks()) != 1 || len(got.GetTasks()[0].GetContext().GetData()) != 3 {
			t.Fatalf("got %v", got)
		}
		w.send(reports(got.GetTasks()...))
		if got := w.got(); len(got.GetReported()) != 1 || got.GetReported()[0].GetFault() != nil {
			t.Errorf("got %v", got)
		}
	})
}
