package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
)

// run is one instance as its starter knows it.
type run struct {
	req   *wigglev1.StartInstanceRequest
	input order
	// at is when to start it, from the beginning.
	at time.Duration
	// twice has it started by two callers at the same time.
	twice bool

	mu      sync.Mutex
	id      string
	created int // answers that said so
	calls   int // tries in all
}

// plan draws the instances: started over the first third of the killing, with
// rounds that last until its end; a seventh of them goes through one round more.
func plan(r *rand.Rand, began time.Time, n, rounds int, killing time.Duration) []*run {
	runs := make([]*run, n)
	for i := range runs {
		rounds := rounds
		if i%7 == 0 {
			rounds++
		}
		at := time.Duration(float64(killing) / 3 * float64(i) / float64(n))
		end := time.Duration(float64(killing) * (0.85 + 0.25*r.Float64()))
		o := order{N: i, Sum: mix("", fmt.Sprint(i))}
		for round := range rounds {
			wake := began.Add(at + (end-at)*time.Duration(round+1)/time.Duration(rounds))
			o.Wakes = append(o.Wakes, wake.UTC().Format(time.RFC3339Nano))
		}
		for k := range 3 + max(0, i%8-4) { // 3 to 6
			o.Items = append(o.Items, item{K: k, Sum: mix("", fmt.Sprint(i, "/", k))})
		}
		data, err := json.Marshal(o)
		if err != nil {
			panic(err) // a defect of the test
		}
		runs[i] = &run{input: o, at: at, twice: i%10 == 3, req: &wigglev1.StartInstanceRequest{
			Workflow: []string{workflowWide, workflowNarrow}[i%2], Input: &wigglev1.Payload{Data: data},
			Ulid: strings.ToLower(ulid.MustNew(ulid.Timestamp(began.Add(at)), entropy{r}).String()),
		}}
	}
	return runs
}

// entropy draws a ulid's random bits.
type entropy struct{ *rand.Rand }

// Read never fails.
func (e entropy) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e.UintN(256)) //nolint:gosec // fits
	}
	return len(p), nil
}

// startAll starts every instance at its time, and returns when all are started.
func startAll(ctx context.Context, c cluster.Clients, began time.Time, runs []*run) error {
	var all sync.WaitGroup
	errs := make(chan error, 2*len(runs))
	for _, r := range runs {
		callers := 1
		if r.twice {
			callers = 2
		}
		for range callers {
			all.Go(func() {
				if cluster.Pause(ctx, time.Until(began.Add(r.at))) {
					errs <- r.start(ctx, c)
				}
			})
		}
	}
	all.Wait()
	close(errs)
	var failed []error
	for err := range errs {
		failed = append(failed, err)
	}
	return errors.Join(append(failed, ctx.Err())...)
}

// start sends the same start until it is answered.
func (r *run) start(ctx context.Context, c cluster.Clients) error {
	for {
		callCtx, cancel := context.WithTimeout(ctx, callTime)
		res, err := c.Instances.StartInstance(callCtx, r.req)
		cancel()
		switch {
		case err == nil:
			return r.answered(res)
		case ctx.Err() != nil:
			return ctx.Err()
		case !again(err):
			return fmt.Errorf("start %d (%s) was refused: %w", r.input.N, faults.CodeOf(err), err)
		}
		r.mu.Lock()
		r.calls++
		r.mu.Unlock()
		if !cluster.Pause(ctx, repeatPause) {
			return ctx.Err()
		}
	}
}

func (r *run) answered(res *wigglev1.StartInstanceResponse) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if res.GetCreated() {
		r.created++
	}
	if r.id == "" {
		r.id = res.GetInstanceId()
	}
	switch {
	case r.id != res.GetInstanceId():
		return fmt.Errorf("start %d was answered with %s and with %s", r.input.N, r.id, res.GetInstanceId())
	case r.created > 1:
		return fmt.Errorf("%s was created %d times", r.id, r.created)
	}
	return nil
}

// eventually repeats a call that only reads until it is answered.
func eventually[T any](ctx context.Context, call func(ctx context.Context) (T, error)) (T, error) {
	for {
		callCtx, cancel := context.WithTimeout(ctx, callTime)
		res, err := call(callCtx)
		cancel()
		if err == nil || !again(err) {
			return res, err
		}
		if !cluster.Pause(ctx, repeatPause) {
			return res, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}
