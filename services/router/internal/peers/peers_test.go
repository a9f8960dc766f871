package peers_test

import (
	"context"
	"errors"
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
