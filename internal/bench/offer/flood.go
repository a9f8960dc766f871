package offer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// floodEvery is how often a call offers the starts that have come due.
	floodEvery = 25 * time.Millisecond
	// floodCalls bounds the calls under way. When none is free what came due is not offered, and the result shows it.
	floodCalls = 256
	// floodBatch is how many starts a call takes at most.
	floodBatch = 1000
	// floodTime is how long an answer may take.
	floodTime = 30 * time.Second
)

// Flood offers starts at a rate, whatever becomes of them: nothing is tried again, and no pause that is asked for is kept.
// Requests are put together from bytes: it runs beside what it measures, and offers many times what that can do.
type Flood struct {
	client   *connect.Client[startsBytes, wigglev1.StartInstancesResponse]
	http     *http.Client
	template startTemplate

	mu sync.Mutex
	Counts
}

// Counts are what became of what was offered.
type Counts struct {
	Offered, Accepted int64
	// Refused by code, for want of room or of a shard, and told when to come back.
	Refused map[string]int64
	// Pauses are those that were asked for, one for each call.
	Pauses []time.Duration
	// Untyped were neither started nor refused as they should be. Failures are the first few.
	Untyped  int64
	Failures []string
}

// maxFailures bounds how many failures are told one by one.
const maxFailures = 5

// NewFlood makes a flood of starts of a workflow at the router of a client, shown the client's key.
func NewFlood(client *wiggle.Client, workflow string, input []byte) (*Flood, error) {
	template, err := newStartTemplate(workflow, input)
	if err != nil {
		return nil, err
	}
	f := &Flood{http: rpc.NewHTTPClient(rpc.ClientConfig{Connections: 2}), template: template}
	f.Refused = map[string]int64{}
	_, url, asClient := client.Generated()
	f.client = connect.NewClient[startsBytes, wigglev1.StartInstancesResponse](
		f.http, url+wigglev1connect.InstanceServiceStartInstancesProcedure, asClient, connect.WithGRPC(), connect.WithCodec(floodCodec{}))
	return f, nil
}

// Run offers so many starts a second, for so long.
func (f *Flood) Run(ctx context.Context, rate float64, d time.Duration) error {
	defer f.http.CloseIdleConnections()
	slots := make(chan struct{}, floodCalls)
	var calls sync.WaitGroup
	defer calls.Wait()
	began, due := time.Now(), int64(0) // due: how many have come due so far
	tick := time.NewTicker(floodEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		elapsed := time.Since(began)
		if elapsed >= d {
			return nil
		}
		now := int64(rate * elapsed.Seconds())
		for n := now - due; n > 0; n -= floodBatch {
			select {
			case slots <- struct{}{}:
				calls.Go(func() {
					defer func() { <-slots }()
					f.call(ctx, int(min(n, floodBatch)))
				})
			default: // none is free: they are not offered
			}
		}
		due = now
	}
}

// call offers n starts and notes what becomes of them.
func (f *Flood) call(ctx context.Context, n int) {
	req := f.template.starts(mintAll(time.Now(), n))
	ctx, cancel := context.WithTimeout(ctx, floodTime)
	defer cancel()
	res, err := f.client.CallUnary(ctx, connect.NewRequest(req))
	var outcomes []*wigglev1.StartOutcome
	if err == nil {
		outcomes = res.Msg.GetOutcomes()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(n, outcomes, err)
}

// note notes the answer to a call of n starts.
func (f *Counts) note(n int, outcomes []*wigglev1.StartOutcome, err error) {
	f.Offered += int64(n)
	if err != nil {
		f.refuse(int64(n), faultOf(err), err)
		return
	}
	var last *wigglev1.Fault
	refused := int64(n - len(outcomes)) // none, or it is a fault of the server's
	for _, o := range outcomes {
		switch fault := o.GetFault(); {
		case fault == nil:
			f.Accepted++
		case last != nil && last.GetCode() != fault.GetCode():
			f.refuse(refused, last, errors.New(last.GetMessage()))
			last, refused = fault, 1
		default:
			last = fault
			refused++
		}
	}
	if refused > 0 {
		f.refuse(refused, last, errors.New(last.GetMessage()))
	}
}

// refuse counts starts that were refused with a fault, nil if it was none of ours.
func (f *Counts) refuse(n int64, fault *wigglev1.Fault, err error) {
	code := faults.Code(fault.GetCode())
	if fault == nil || fault.GetRetryAfter() == nil || code != faults.CodeResourceExhausted && code != faults.CodeUnavailable {
		f.Untyped += n
		if len(f.Failures) < maxFailures {
			f.Failures = append(f.Failures, fmt.Sprintf("%d starts were refused without a type and a time to come back: %v", n, err))
		}
		return
	}
	f.Refused[strings.ToLower(code.String())] += n
	f.Pauses = append(f.Pauses, fault.GetRetryAfter().AsDuration())
}

// faultOf is the fault that an error of a call carries; nil if it carries none.
func faultOf(err error) *wigglev1.Fault {
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return nil
	}
	for _, d := range ce.Details() {
		v, err := d.Value()
		if fault, ok := v.(*wigglev1.Fault); ok && err == nil {
			return fault
		}
	}
	return nil
}
