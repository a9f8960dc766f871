package router_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/placement"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testLogger(t *testing.T) *slog.Logger {
	t.Helper()
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

func placeOf(t *testing.T, u ulid.ULID) int {
	t.Helper()
	return placement.Place(parse(t, threeShards).Placement(), u)
}

var oneEach = map[string][]int{"p0": {0}, "p1": {1}, "p2": {2}}

var twoForAll = map[string][]int{"a": {0, 1, 2}, "b": {0, 1, 2}}

func (c *cluster) start(shard int) string {
	c.t.Helper()
	res, err := c.instances.StartInstance(c.t.Context(),
		&wigglev1.StartInstanceRequest{Workflow: "w", Ulid: c.ulidOn(shard)})
	if err != nil {
		c.t.Fatal(err)
	}
	return res.GetInstanceId()
}

// Every call goes to the shard that its id, its ulid or its header says, and to no other.
func TestRoutes(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		ctx := t.Context()
		for shard := range 3 {
			id := c.start(shard)
			token := shardid.NewToken(shard, ulid.Make()).String()
			for method, call := range map[string]func() error{
				"GetInstance": func() error {
					_, err := c.instances.GetInstance(ctx, &wigglev1.GetInstanceRequest{InstanceId: id})
					return err
				},
				"GetHistory": func() error {
					_, err := c.instances.GetHistory(ctx, &wigglev1.GetHistoryRequest{InstanceId: id})
					return err
				},
				"CancelInstance": func() error {
					_, err := c.instances.CancelInstance(ctx, &wigglev1.CancelInstanceRequest{InstanceId: id})
					return err
				},
				"WaitInstance": func() error {
					_, err := c.instances.WaitInstance(ctx, &wigglev1.WaitInstanceRequest{InstanceId: id, Wait: durationpb.New(0)})
					return err
				},
				"FailTask": func() error {
					_, err := c.workers.FailTask(ctx, &wigglev1.FailTaskRequest{Worker: "w", TaskId: token, Failure: &wigglev1.Failure{}})
					if !errors.Is(err, faults.ErrLeaseLost) {
						return fmt.Errorf("want a lost lease, got %w", err)
					}
					return nil
				},
				"ReportSteps": func() error {
					_, err := c.workers.ReportSteps(ctx, &wigglev1.ReportStepsRequest{Worker: "w", Reports: []*wigglev1.StepReport{{TaskId: token}}})
					return err
				},
			} {
				if err := call(); err != nil {
					t.Errorf("%s: %v", method, err)
				}
				if got, want := c.called(method), []string{fmt.Sprintf("%s@%d", method, shard)}; !slices.Equal(got, want) {
					t.Errorf("%s went to %v, want %v", method, got, want)
				}
			}
		}
		c.called("StartInstances")
		// What legacy ids name is on home.
		_, err := c.instances.GetInstance(ctx, &wigglev1.GetInstanceRequest{InstanceId: "wfi_old"})
		if !errors.Is(err, faults.ErrNotFound) || !slices.Equal(c.called("GetInstance"), []string{"GetInstance@0"}) {
			t.Errorf("a legacy id: %v", err)
		}
	})
}

func TestIDsWithoutARoute(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		for id, want := range map[string]error{
			shardid.NewInstance(7, ulid.Make()).String(): faults.ErrShardUnknown,
			shardid.NewInstance(9, ulid.Make()).String(): faults.ErrNotFound,
			"wfi.s1.x": faults.ErrInvalidArgument,
			"":         faults.ErrInvalidArgument,
		} {
			_, err := c.instances.GetInstance(t.Context(), &wigglev1.GetInstanceRequest{InstanceId: id})
			if !errors.Is(err, want) {
				t.Errorf("%q: got %v, want %v", id, err, want)
			}
		}
		if got := c.called("GetInstance"); len(got) > 0 {
			t.Errorf("calls %v", got)
		}
		good := shardid.NewToken(1, ulid.Make()).String()
		res, err := c.workers.Heartbeat(t.Context(), &wigglev1.HeartbeatRequest{Worker: "w", Beats: []*wigglev1.Beat{
			{TaskId: "nonsense"},
			{TaskId: good},
			{TaskId: shardid.NewToken(7, ulid.Make()).String()},
			{TaskId: shardid.NewToken(9, ulid.Make()).String()},
		}})
		if err != nil {
			t.Fatal(err)
		}
		var codes []int32
		for _, o := range res.GetOutcomes() {
			codes = append(codes, o.GetFault().GetCode())
		}
		if want := []int32{3, 10, 14, 5}; !slices.Equal(codes, want) {
			t.Errorf("codes %v, want %v", codes, want)
		}
	})
}

func TestStarts(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		same := c.ulidOn(2)
		starts := []*wigglev1.StartInstanceRequest{
			{Workflow: "w", Ulid: c.ulidOn(0)},
			{Workflow: "w", Ulid: c.ulidOn(1)},
			{Workflow: "w", Ulid: same},
			{Workflow: "w"},
			{Workflow: "w", Ulid: "NOPE"},
			{Workflow: "w", Ulid: strings.ToLower(ulid.MustNew(ulid.Timestamp(time.Now().Add(6*time.Minute)), ulid.DefaultEntropy()).String())},
			{Workflow: "w", Input: &wigglev1.Payload{Data: make([]byte, 1<<20+1)}},
		}
		res, err := c.instances.StartInstances(t.Context(), &wigglev1.StartInstancesRequest{Starts: starts})
		if err != nil {
			t.Fatal(err)
		}
		for i, shard := range []int{0, 1, 2} {
			if id := res.GetOutcomes()[i].GetStarted().GetInstanceId(); id != fmt.Sprintf("wfi.s%d.%s", shard, starts[i].GetUlid()) {
				t.Errorf("start %d became %q", i, id)
			}
		}
		if id, err := shardid.ParseInstance(res.GetOutcomes()[3].GetStarted().GetInstanceId()); err != nil {
			t.Error(err)
		} else if u, _ := id.ULID(); placeOf(t, u) != id.Shard() {
			t.Errorf("a minted id %v is not where its ulid is placed", id)
		}
		for i, code := range map[int]int32{4: 3, 5: 3, 6: 8} {
			if got := res.GetOutcomes()[i].GetFault().GetCode(); got != code {
				t.Errorf("start %d: code %d, want %d", i, got, code)
			}
		}
		if limit := res.GetOutcomes()[6].GetFault().GetLimitExceeded(); limit.GetSetting() != "WIGGLE_LIMIT_PAYLOAD_BYTES" {
			t.Errorf("limit %v", limit)
		}
		again, err := c.instances.StartInstance(t.Context(), &wigglev1.StartInstanceRequest{Workflow: "w", Ulid: same})
		if err != nil || again.GetCreated() || again.GetInstanceId() != "wfi.s2."+same {
			t.Errorf("the same start again: %v, %v", again, err)
		}
	})
}

// A dead shard fails its own items and nothing else.
func TestADeadShardFailsItsItems(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.kill("p1")
		res, err := c.instances.StartInstances(t.Context(), &wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{
			{Workflow: "w", Ulid: c.ulidOn(0)}, {Workflow: "w", Ulid: c.ulidOn(1)}, {Workflow: "w", Ulid: c.ulidOn(2)},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if res.GetOutcomes()[0].GetStarted() == nil || res.GetOutcomes()[2].GetStarted() == nil {
			t.Errorf("healthy shards: %v", res)
		}
		fault := faults.FromProto(res.GetOutcomes()[1].GetFault())
		if !errors.Is(fault, faults.ErrShardUnavailable) {
			t.Errorf("dead shard: %v", fault)
		}
		if _, ok := fault.RetryAfter(); !ok {
			t.Error("no time to try again")
		}
	})
}

// A start whose process dies after it was applied is made again on another process, and applied once.
func TestRepeatedOnAnotherProcess(t *testing.T) {
	t.Parallel()
	inBubble(t, twoForAll, func(c *cluster) {
		t := c.t
		for _, p := range c.processes {
			p.setHook(func(ctx context.Context, method string, _ int) error {
				if method != "StartInstances" {
					return nil
				}
				p.setHook(nil)
				for _, other := range c.processes {
					other.setHook(nil)
				}
				c.kill(p.name)
				return ctx.Err()
			})
		}
		begin := time.Now()
		id := c.start(1)
		if d := time.Since(begin); d > time.Second {
			t.Errorf("took %v", d)
		}
		if got := c.called("StartInstances"); len(got) != 2 {
			t.Errorf("calls %v", got)
		}
		if _, err := c.instances.GetInstance(t.Context(), &wigglev1.GetInstanceRequest{InstanceId: id}); err != nil {
			t.Error(err)
		}
	})
}

// All calls of a shard meet in one process; when it dies they move within a second, and only its shards do.
func TestPreferredProcess(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(c *cluster, victim string){
		"killed":  func(c *cluster, victim string) { c.kill(victim) },
		"lost":    func(c *cluster, victim string) { c.net.Partition(rpc.AnyName, victim, rpc.Lost) },
		"refused": func(c *cluster, victim string) { c.net.Partition(rpc.AnyName, victim, rpc.Refused) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, map[string][]int{"a": {0, 1, 2}, "b": {0, 1, 2}, "c": {0, 1, 2}}, func(c *cluster) {
				ids := []string{c.start(0), c.start(1), c.start(2)}
				server := func(shard int) string {
					for range 3 {
						_, err := c.instances.GetInstance(c.t.Context(), &wigglev1.GetInstanceRequest{InstanceId: ids[shard]})
						if err != nil {
							c.t.Fatal(err)
						}
					}
					var by []string
					for name, p := range c.processes {
						if n := len(p.took("GetInstance")); n > 0 {
							by = append(by, name)
						}
					}
					if len(by) != 1 {
						c.t.Fatalf("shard %d is served by %v", shard, by)
					}
					return by[0]
				}
				before := []string{server(0), server(1), server(2)}
				victim := before[1]
				end(c, victim)
				time.Sleep(time.Second + 100*time.Millisecond) // of the bubble: a probe and its timeout
				for shard := range 3 {
					after := server(shard)
					if before[shard] == victim && after == victim || before[shard] != victim && after != before[shard] {
						c.t.Errorf("shard %d: from %s to %s, lost %s", shard, before[shard], after, victim)
					}
				}
			})
		})
	}
}

func TestDrainingProcessGetsNoPolls(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0, 1, 2}}, func(c *cluster) {
		t := c.t
		c.databases[1].addTasks("default", 1)
		p := c.processes["a"]
		p.mu.Lock()
		p.draining = true
		p.mu.Unlock()
		time.Sleep(time.Second)
		id := c.start(1)
		res, err := c.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
		if err != nil || len(res.GetTasks()) > 0 || len(c.called("PollTasks")) > 0 {
			t.Errorf("poll: %v, %v", res, err)
		}
		if _, err := c.instances.GetInstance(t.Context(), &wigglev1.GetInstanceRequest{InstanceId: id}); err != nil {
			t.Error(err)
		}
	})
}

// A wait outlives the process that serves it, and the caller gets the state when the router goes down.
func TestWait(t *testing.T) {
	t.Parallel()
	inBubble(t, twoForAll, func(c *cluster) {
		t := c.t
		id := c.start(1)
		wait := func() chan *wigglev1.WaitInstanceResponse {
			answers := make(chan *wigglev1.WaitInstanceResponse, 1)
			go func() {
				res, err := c.instances.WaitInstance(context.Background(),
					&wigglev1.WaitInstanceRequest{InstanceId: id, Wait: durationpb.New(time.Minute)})
				if err != nil {
					c.t.Error(err)
				}
				answers <- res
			}()
			c.settle()
			return answers
		}
		answers := wait()
		for name, p := range c.processes {
			if len(p.took("WaitInstance")) > 0 {
				c.kill(name)
			}
		}
		time.Sleep(time.Second)
		c.databases[1].end(id, wigglev1.InstanceState_INSTANCE_STATE_COMPLETED)
		c.settle()
		select {
		case res := <-answers:
			if !res.GetEnded() {
				t.Errorf("got %v", res)
			}
		default:
			t.Fatal("the wait did not move to the other process")
		}

		begin := time.Now()
		id = c.start(2)
		if res := <-wait(); res.GetEnded() || time.Since(begin) < time.Minute-time.Second {
			t.Errorf("got %v after %v", res, time.Since(begin))
		}
		answers = wait()
		c.stop()
		c.settle()
		begin = time.Now()
		if res := <-answers; res.GetEnded() || res.GetInstance().GetId() != id || time.Since(begin) > time.Second {
			t.Errorf("on the way down: %v after %v", res, time.Since(begin))
		}
	})
}
