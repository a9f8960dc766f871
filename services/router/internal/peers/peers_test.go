package peers_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/services/router/internal/peers"
)

// process is a client of one: its name, and what it answers.
type process struct {
	name string
	err  error
	hang bool
}

func (p *process) call(ctx context.Context) (string, error) {
	if p.hang {
		<-ctx.Done()
		return "", faults.FromError(ctx.Err())
	}
	return p.name, p.err
}

func do(ctx context.Context, p *peers.Peers[*process]) (string, error) {
	return peers.Do(ctx, p, 10*time.Second, func(ctx context.Context, c *process) (string, error) { return c.call(ctx) })
}

// TestAway: the next process answers for one that is away, and goes on doing so; what a process that is there says of the call
// is for the caller.
func TestAway(t *testing.T) {
	t.Parallel()
	a, b := &process{name: "a"}, &process{name: "b"}
	p := peers.New("leader", "WIGGLE_LEADER_URLS", a, b)
	is := func(want string, code faults.Code) {
		t.Helper()
		if got, err := do(t.Context(), p); got != want || faults.CodeOf(err) != code {
			t.Errorf("%q answers, %v", got, err)
		}
	}
	is("a", faults.CodeOK)
	a.err = faults.Unavailable(time.Second, "draining")
	is("b", faults.CodeOK)
	a.err = nil
	is("b", faults.CodeOK)
	b.err = faults.NotFound("schedule", "x")
	is("b", faults.CodeNotFound)
	a.err, b.err = faults.Unavailable(0, "gone"), faults.Unavailable(0, "gone")
	is("", faults.CodeUnavailable)
	if _, err := do(t.Context(), peers.New[*process]("leader", "WIGGLE_LEADER_URLS")); !errors.Is(err, faults.ErrUnimplemented) {
		t.Errorf("without any: %v", err)
	}
}

// TestHangs: a process that hangs costs those who call it their time, but not those who call later.
func TestHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := &process{name: "a", hang: true}, &process{name: "b"}
		p := peers.New("leader", "WIGGLE_LEADER_URLS", a, b)
		if _, err := do(t.Context(), p); !errors.Is(err, faults.ErrDeadlineExceeded) {
			t.Errorf("the first call: %v", err)
		}
		began := time.Now()
		if got, err := do(t.Context(), p); got != "b" || err != nil || time.Since(began) > 0 {
			t.Errorf("the next: %q, %v after %v", got, err, time.Since(began))
		}
	})
}

// TestOnce: a call that must not be made twice goes to one process; when it is away nobody knows what became of the call, and the
// next call goes to the next.
func TestOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := &process{name: "a"}, &process{name: "b"}
		p := peers.New("auth", "WIGGLE_AUTH_URLS", a, b)
		calls := ""
		once := func(want string, code faults.Code) error {
			t.Helper()
			calls = ""
			got, err := peers.Once(t.Context(), p, 10*time.Second, func(ctx context.Context, c *process) (string, error) {
				calls += c.name
				return c.call(ctx)
			})
			if got != want || faults.CodeOf(err) != code || len(calls) != 1 {
				t.Errorf("%q answers, %v, after calls of %q", got, err, calls)
			}
			return err
		}
		_ = once("a", faults.CodeOK)
		a.err = faults.NotFound("key", "x")
		_ = once("a", faults.CodeNotFound)
		_ = once("a", faults.CodeNotFound) // it answers: it stays the one that is asked
		a.err = faults.Unavailable(0, "gone")
		if err := once("", faults.CodeUnavailable); calls != "a" || !strings.Contains(err.Error(), "may or may not have been applied") {
			t.Errorf("a process that is away: %v", err)
		}
		b.hang = true
		if err := once("", faults.CodeUnavailable); calls != "b" || !strings.Contains(err.Error(), "may or may not have been applied") {
			t.Errorf("a process that hangs: %v", err)
		}
		a.err = nil
		_ = once("a", faults.CodeOK)
	})
	if _, err := peers.Once(t.Context(), peers.New[*process]("auth", "WIGGLE_AUTH_URLS"), time.Second,
		func(context.Context, *process) (string, error) { return "", nil }); !errors.Is(err, faults.ErrUnimplemented) {
		t.Errorf("without any: %v", err)
	}
}
