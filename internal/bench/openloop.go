package bench

import (
	"context"
	"sync"
	"time"
)

// maxWaitedRate is up to how many starts a second each instance is also waited for, as a client would: beyond it that would
// be a good part of the load.
const maxWaitedRate = 100

// atRate starts instances at intended times, whatever becomes of them, for as long as d. It returns when all starts have
// been answered and, at a low rate, all ends too. seen has what a client saw of those that were intended after the warm-up:
// from the intended start to the answer that it has ended.
func (g *generator) atRate(ctx context.Context, rate float64, warmup, d time.Duration) (seen []time.Duration, err error) {
	began := time.Now()
	var mu sync.Mutex
	var calls sync.WaitGroup
	defer calls.Wait()
	for i := 0; ; i++ {
		offset := time.Duration(float64(i) / rate * float64(time.Second))
		if offset >= warmup+d {
			break
		}
		if err := sleepUntil(ctx, began.Add(offset)); err != nil {
			return nil, err
		}
		g.ask(1)
		calls.Go(func() {
			took, ok := g.startAndWait(ctx, began.Add(offset), rate <= maxWaitedRate)
			if ok && offset >= warmup {
				mu.Lock()
				seen = append(seen, took)
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	return seen, g.bench.Ended()
}

// startAndWait starts one instance that was intended for a time.
func (g *generator) startAndWait(ctx context.Context, intended time.Time, wait bool) (time.Duration, bool) {
	late := max(0, time.Since(intended))
	run, err := g.bench.client.Start(ctx, g.load.workflow, g.load.input)
	g.mu.Lock()
	if err != nil {
		g.asked--
		g.fail(err)
	} else {
		g.ids = append(g.ids, run.ID)
		g.late[run.ID] = late
	}
	g.mu.Unlock()
	if err != nil || !wait {
		return 0, false
	}
	if _, err = run.Wait(ctx); err != nil {
		return 0, false // the account finds how it ended
	}
	return time.Since(intended), true
}

func sleepUntil(ctx context.Context, at time.Time) error {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
