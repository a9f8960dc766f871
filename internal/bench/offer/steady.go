package offer

import (
	"context"
	"sync"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// paceEvery is how often a call starts what has come due, and paceCalls how many such calls may be under way.
	paceEvery = 10 * time.Millisecond
	paceCalls = 128
)

// Steady starts instances at a rate, by the client, which tries again what is refused.
type Steady struct {
	client   *wiggle.Client
	workflow string
	input    any

	mu sync.Mutex
	// What became of them, and the first few failures. They are to be read when Run has returned.
	Accepted, Failed int64
	Failures         []string
}

// NewSteady makes a steady load of starts of a workflow.
func NewSteady(client *wiggle.Client, workflow string, input any) *Steady {
	return &Steady{client: client, workflow: workflow, input: input}
}

// Run starts so many a second for so long. Each has the time at which it was intended in its ulid.
func (s *Steady) Run(ctx context.Context, rate float64, d time.Duration) error {
	slots := make(chan struct{}, paceCalls)
	var calls sync.WaitGroup
	defer calls.Wait()
	began, due := time.Now(), int64(0)
	for at := began; at.Sub(began) < d; at = at.Add(paceEvery) {
		if err := until(ctx, at); err != nil {
			return err
		}
		now := int64(rate * at.Sub(began).Seconds())
		if now == due {
			continue
		}
		n := int(now - due)
		due = now
		select {
		case slots <- struct{}{}: // if none is free the start is late, and its ulid says so
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		calls.Go(func() {
			defer func() { <-slots }()
			s.call(ctx, at, n)
		})
	}
	return nil
}

// until waits for a time.
func until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Steady) call(ctx context.Context, intended time.Time, n int) {
	starts := make([]wiggle.Start, n)
	for i, id := range mintAll(intended, n) {
		ulid := wiggle.WithULID(string(id[:]))
		starts[i] = wiggle.Start{Workflow: s.workflow, Input: s.input, Options: []wiggle.StartOption{ulid}}
	}
	outcomes, err := s.client.StartMany(ctx, starts)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range outcomes {
		if o.Err == nil {
			s.Accepted++
		} else {
			s.Failed++
		}
	}
	if err != nil && len(s.Failures) < maxFailures {
		s.Failures = append(s.Failures, "not started: "+err.Error())
	}
}
