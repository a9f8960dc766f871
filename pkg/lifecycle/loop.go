package lifecycle

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// DefaultJitter is the part of a loop's interval that is drawn at random.
	DefaultJitter = 0.2
	// maxBackoffFactor bounds how far errors stretch the interval.
	maxBackoffFactor = 8
	// maxAgain bounds how often in a row a loop runs at once because there is more to do, before it pauses for a moment and
	// lets others in.
	maxAgain   = 64
	againPause = time.Millisecond
)

// ErrMore is what RunOnce returns (or wraps) when it did a bounded part of its work and should run again at once.
var ErrMore = errors.New("more to do")

// Waker wakes a [Loop] from anywhere without blocking; wake-ups that come while one is pending are one. The zero value
// is not usable, see [NewWaker].
type Waker struct{ c chan struct{} }

// NewWaker returns a waker.
func NewWaker() *Waker { return &Waker{c: make(chan struct{}, 1)} }

// Wake makes the loop run soon. A nil Waker does nothing.
func (w *Waker) Wake() {
	if w == nil {
		return
	}
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// C is the channel to select on; nil for a nil Waker, which never fires.
func (w *Waker) C() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.c
}

// Loop runs a function again and again: after a jittered interval, when woken, or at once while there is more to do.
type Loop struct {
	// Interval is the mean pause between two runs. Required.
	Interval time.Duration
	// Jitter is the part of the interval drawn at random: 0.2 means 0.9 to 1.1 intervals. Default 0.2, at most 2.
	Jitter float64
	// Immediate runs at once in the beginning. Otherwise the first run comes within one interval at random, so that
	// processes that start together do not run together.
	Immediate bool
	// Timeout bounds one run. Default: none but the loop's context.
	Timeout time.Duration
	// Waker, if set, makes the loop run before its time.
	Waker *Waker
	// RunOnce does the work. Errors, panics included, do not end the loop: they go to OnError and double the interval up to
	// eightfold until a run succeeds. [ErrMore] is not an error.
	RunOnce func(ctx context.Context) error
	// OnError is told of errors; nil drops them. An error that comes with the end of the loop's context is not told.
	OnError func(error)
}

// Run loops until ctx ends and returns nil, so that it can be passed to [Group.Go]. It must not be called twice at once.
func (l Loop) Run(ctx context.Context) error {
	failures, again := 0, 0
	next := l.first()
	timer := time.NewTimer(next)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-l.Waker.C():
		}
		if ctx.Err() != nil {
			return nil
		}
		err := l.runOnce(ctx)
		switch {
		case errors.Is(err, ErrMore):
			failures, again = 0, again+1
			next = 0
			if again%maxAgain == 0 {
				next = againPause
			}
		case err != nil:
			failures, again = failures+1, 0
			next = l.pause(failures)
			if l.OnError != nil && ctx.Err() == nil {
				l.OnError(err)
			}
		default:
			failures, again = 0, 0
			next = l.pause(0)
		}
		timer.Reset(next)
	}
}

func (l Loop) runOnce(ctx context.Context) error {
	if l.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.Timeout)
		defer cancel()
	}
	return Protect(ctx, l.RunOnce)
}

func (l Loop) first() time.Duration {
	if l.Immediate || l.Interval <= 0 {
		return 0
	}
	return rand.N(l.Interval) //nolint:gosec // jitter
}

// pause is the interval, stretched by failures, with jitter around it.
func (l Loop) pause(failures int) time.Duration {
	factor := 1
	for range failures {
		factor = min(2*factor, maxBackoffFactor)
	}
	interval := l.Interval * time.Duration(factor)
	jitter := l.Jitter
	if jitter == 0 {
		jitter = DefaultJitter
	}
	spread := float64(interval) * min(jitter, 2)
	return interval + time.Duration(spread*(rand.Float64()-0.5)) //nolint:gosec // jitter
}
