package trouble

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/placement"
	"github.com/wiggle-run/wiggle/pkg/topology"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
)

const (
	workflow = "trouble"
	// triesPause is the pause between tries of what is waited for.
	triesPause = 20 * time.Millisecond
	// workWait is how long a worker waits for tasks.
	workWait = time.Second
)

// oneStep is the workflow: what it does is not the point here.
func oneStep() *wiggle.Definition {
	return wiggle.Define(workflow, func(f *wiggle.Flow) { f.Task("step") })
}

// noStep is a workflow whose instances end as they start.
func noStep(name string) *wiggle.Definition {
	return wiggle.Define(name, func(f *wiggle.Flow) { f.Sleep(time.Millisecond) })
}

// leads tells whether a leader process leads, as its gRPC health says.
func leads(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/grpc.health.v1.Health/Check",
		strings.NewReader(`{"service":"leader"}`))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return err == nil && strings.Contains(string(text), `"SERVING_STATUS_SERVING"`)
}

// startOn is a start whose ulid the topology places on a shard.
func startOn(top *topology.Topology, shard int) *wigglev1.StartInstanceRequest {
	for {
		id := ulid.Make()
		if placement.Place(top.Placement(), id) == shard {
			return &wigglev1.StartInstanceRequest{
				Workflow: workflow, Ulid: strings.ToLower(id.String()), Input: &wigglev1.Payload{Data: []byte(`{"a":1}`)},
			}
		}
	}
}

// until tries until there is no error, and tells how long it took; the last error
// if ctx ends before.
func until(ctx context.Context, try func() error) (time.Duration, error) {
	began := time.Now()
	for {
		err := try()
		if err == nil {
			return time.Since(began), nil
		}
		if !cluster.Pause(ctx, triesPause) {
			return time.Since(began), fmt.Errorf("after %s still: %w", time.Since(began), err)
		}
	}
}

// work polls once and reports what it gets.
func work(ctx context.Context, c cluster.Clients) (done int, err error) {
	res, err := c.Workers.PollTasks(ctx, &wigglev1.PollTasksRequest{
		Worker: "worker", MaxTasks: 10, Wait: durationpb.New(workWait), Lease: durationpb.New(10 * time.Second),
	})
	if err != nil || len(res.GetTasks()) == 0 {
		return 0, err
	}
	req := &wigglev1.ReportStepsRequest{Worker: "worker"}
	outcome := &wigglev1.StepReport_Result{Result: &wigglev1.Payload{Data: []byte(`{"b":2}`)}}
	for _, t := range res.GetTasks() {
		req.Reports = append(req.Reports, &wigglev1.StepReport{TaskId: t.GetId(), Lease: t.GetLease(), Outcome: outcome})
	}
	answers, err := c.Workers.ReportSteps(ctx, req)
	if err != nil {
		return 0, err
	}
	for _, o := range answers.GetOutcomes() {
		if f := o.GetFault(); f != nil {
			return done, fmt.Errorf("report of %s: %v", o.GetTaskId(), f)
		}
		done++
	}
	return done, nil
}

// get fetches a page of a process.
func get(ctx context.Context, url string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// shardState is what the router tells about a shard.
type shardState struct {
	Shard     int    `json:"shard"`
	Ready     bool   `json:"ready"`
	Reason    string `json:"reason"`
	Processes int    `json:"processes"`
}

func shardStates(ctx context.Context, routerURL string) ([]shardState, error) {
	_, body, err := get(ctx, routerURL+"/readyz/shards")
	if err != nil {
		return nil, err
	}
	var states []shardState
	return states, json.Unmarshal([]byte(body), &states)
}

// calls collects how long calls took, and which failed.
type calls struct {
	mu     sync.Mutex
	took   []time.Duration
	failed []error
}

// measure makes a call and notes what became of it.
func (c *calls) measure(what string, call func() error) {
	began := time.Now()
	err := call()
	took := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed = append(c.failed, fmt.Errorf("%s at %s, after %s: %w", what, began.Format("15:04:05.000"), took, err))
		return
	}
	c.took = append(c.took, took)
}

// summary is the number of calls that succeeded, and the median and longest of them.
func (c *calls) summary() (n int, median, longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.took) == 0 {
		return 0, 0, 0
	}
	sorted := slices.Sorted(slices.Values(c.took))
	return len(sorted), sorted[len(sorted)/2], sorted[len(sorted)-1]
}

// p99 is what ninety-nine in a hundred of the calls that succeeded did not exceed.
func (c *calls) p99() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(c.took))
	return sorted[len(sorted)*99/100]
}

// reset forgets what succeeded.
func (c *calls) reset() { c.forget(0) }

// forget forgets what succeeded after the first n.
func (c *calls) forget(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = c.took[:min(n, len(c.took))]
}
