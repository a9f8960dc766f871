package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// DefaultGrace is how long [Run] lets components drain if it is given 0.
const DefaultGrace = 20 * time.Second

// hardStopTime is what a component has to return after the grace period before Run leaves it behind.
const hardStopTime = time.Second

// ErrGrace is the cause of a [DrainContext] that has ended because the grace period was over.
var ErrGrace = errors.New("grace period is over")

// errDrain is the cause of a component's context when it is its turn to stop.
var errDrain = errors.New("stopping")

// Component is a part of a process.
type Component struct {
	// Name is used in errors.
	Name string
	// Start, if set, makes the component ready for those after it. It is called in order, and must return.
	Start func(ctx context.Context) error
	// Run blocks until its context ends; returning before that stops the whole. nil means that there is nothing to run.
	Run func(ctx context.Context) error
}

type drainKey struct{}

// DrainContext returns the context for what is left to do after ctx, that of a component's Run, has ended. It carries ctx's
// values and ends when the grace period is over. Outside [Run] it never ends.
func DrainContext(ctx context.Context) context.Context {
	hard, ok := ctx.Value(drainKey{}).(context.Context)
	if !ok {
		return context.WithoutCancel(ctx)
	}
	drain, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(hard, func() { cancel(context.Cause(hard)) })
	return drain
}

// part is a component at run time.
type part struct {
	name string
	stop context.CancelCauseFunc
	done chan struct{}
	err  error // valid after done
}

// Run starts the components in order and blocks until ctx ends, or one of them fails or returns. Then it stops them one
// after another in reverse order, so that what others rely on stops last. All stopping together may take grace (0: 20 s);
// after that the hard context of the rest ends, and what still does not return is named in the error and left behind.
//
// The error is that of the component which failed first, joined with those of stopping; nil after an orderly stop.
func Run(ctx context.Context, grace time.Duration, components ...Component) error {
	if grace == 0 {
		grace = DefaultGrace
	}
	hard, endHard := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endHard(ErrStopped)
	base := context.WithValue(hard, drainKey{}, hard)
	var parts []*part
	first := make(chan *part, len(components))
	err := func() error {
		for _, c := range components {
			if err := startComponent(ctx, c); err != nil || ctx.Err() != nil {
				return err
			}
			if c.Run != nil {
				parts = append(parts, launch(base, c, first))
			}
		}
		return waitForEnd(ctx, first)
	}()
	timer := time.AfterFunc(grace, func() { endHard(ErrGrace) })
	defer timer.Stop()
	return errors.Join(err, stopAll(hard, parts, err))
}

func startComponent(ctx context.Context, c Component) error {
	if c.Start == nil {
		return nil
	}
	err := Protect(ctx, c.Start)
	if err == nil || (ctx.Err() != nil && errors.Is(err, context.Canceled)) {
		return nil
	}
	return fmt.Errorf("start %s: %w", c.Name, err)
}

func launch(base context.Context, c Component, first chan<- *part) *part {
	runCtx, stop := context.WithCancelCause(base)
	p := &part{name: c.Name, stop: stop, done: make(chan struct{})}
	go func() {
		p.err = Protect(runCtx, c.Run)
		if runCtx.Err() != nil && errors.Is(p.err, context.Canceled) {
			p.err = nil
		}
		if p.err != nil {
			p.err = fmt.Errorf("%s: %w", c.Name, p.err)
		} else if runCtx.Err() == nil {
			p.err = fmt.Errorf("%s: returned although nobody stopped it", c.Name)
		}
		close(p.done)
		first <- p
	}()
	return p
}

// waitForEnd blocks until the whole is to stop, and says why if something failed.
func waitForEnd(ctx context.Context, first <-chan *part) error {
	select {
	case <-ctx.Done():
		return nil
	case p := <-first:
		return p.err
	}
}

// stopAll stops the parts in reverse order and returns what went wrong besides the known error.
func stopAll(hard context.Context, parts []*part, known error) error {
	var errs []error
	var stuck []string
	for _, p := range slices.Backward(parts) {
		p.stop(errDrain)
		if !awaitPart(hard, p) {
			stuck = append(stuck, p.name)
			continue
		}
		if p.err != nil && !errors.Is(known, p.err) {
			errs = append(errs, p.err)
		}
	}
	if len(stuck) > 0 {
		errs = append(errs, fmt.Errorf("did not stop in time: %s", strings.Join(stuck, ", ")))
	}
	return errors.Join(errs...)
}

// awaitPart waits for a part to return, a little longer than the grace period.
func awaitPart(hard context.Context, p *part) bool {
	select {
	case <-p.done:
		return true
	case <-hard.Done():
	}
	timer := time.NewTimer(hardStopTime)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}
