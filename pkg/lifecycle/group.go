package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
)

// ErrStopped is the cause of a group's context after [Group.Stop].
var ErrStopped = errors.New("stopped")

// PanicError is a panic of a goroutine.
type PanicError struct {
	// Value is what was passed to panic, Stack where.
	Value any
	Stack []byte
}

// Error returns the value and the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Group owns named goroutines. The first that fails ends the context of all; [Group.Wait] returns its error. The zero
// value is not usable, see [NewGroup].
type Group struct {
	ctx    context.Context //nolint:containedctx // the lifetime of the group's goroutines, which is what a Group is
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	err     error
	running map[string]int
}

// NewGroup returns a group whose goroutines stop when ctx ends.
func NewGroup(ctx context.Context) *Group {
	ctx, cancel := context.WithCancelCause(ctx)
	return &Group{ctx: ctx, cancel: cancel, running: map[string]int{}}
}

// Go starts fn in a goroutine. An error or a panic is recorded under the name and stops the group; returning nil does not.
// context.Canceled after the group was stopped is not an error. Names need not be unique.
func (g *Group) Go(name string, fn func(ctx context.Context) error) {
	g.mu.Lock()
	g.running[name]++
	g.mu.Unlock()
	g.wg.Go(func() {
		err := Protect(g.ctx, fn)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.running[name]--; g.running[name] == 0 {
			delete(g.running, name)
		}
		if err == nil || (g.ctx.Err() != nil && errors.Is(err, context.Canceled)) {
			return
		}
		if g.err == nil {
			g.err = fmt.Errorf("%s: %w", name, err)
		}
		g.cancel(g.err)
	})
}

// Context ends when the group is to stop; its cause says why.
func (g *Group) Context() context.Context { return g.ctx }

// Stop ends the context of all goroutines and returns at once.
func (g *Group) Stop() { g.cancel(ErrStopped) }

// Wait returns when all goroutines have, with the first error. The group can be used again only if it was not stopped.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Close stops the group and waits.
func (g *Group) Close() error {
	g.Stop()
	return g.Wait()
}

// Running returns the names of the goroutines that have not returned, sorted.
func (g *Group) Running() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := make([]string, 0, len(g.running))
	for name := range g.running {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Protect calls fn and turns a panic into a [PanicError]. runtime.Goexit in fn passes.
func Protect(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return fn(ctx)
}
