package duty_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/wiggle-run/wiggle/services/leader/internal/duty"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestOneThatFailsHoldsNoOtherBack: a duty that fails or panics is run again, less and less often; others go on (a dead shard
// holds no other back). It is logged once, and once when it is mended.
func TestOneThatFailsHoldsNoOtherBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		steady, began := 0, []time.Time{}
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := duty.Run(ctx, 3, slog.New(slog.NewTextHandler(&out, nil)), []duty.Duty{
			{Name: "steady", Shard: 0, Run: func(ctx context.Context, term int64) error {
				mu.Lock()
				steady++
				mu.Unlock()
				<-ctx.Done()
				if term != 3 {
					t.Errorf("term %d", term)
				}
				return ctx.Err()
			}},
			{Name: "broken", Shard: 1, Run: func(ctx context.Context, _ int64) error {
				mu.Lock()
				began = append(began, time.Now())
				n := len(began)
				mu.Unlock()
				switch {
				case n == 2:
					panic("at the second")
				case n == 3:
					return nil
				case n < 10:
					return errors.New("broken")
				case n == 10:
					<-time.After(10 * time.Second) // long enough to count as mended
					return errors.New("broken again")
				}
				<-ctx.Done()
				return nil
			}},
		})
		if err != nil || steady != 1 || len(began) != 11 {
			t.Errorf("got %v, steady ran %d times, broken %d", err, steady, len(began))
		}
		for i := range began[1:10] {
			if gap := began[i+1].Sub(began[i]); gap < 125*time.Millisecond || gap > 2*time.Second {
				t.Errorf("gap %d is %v", i, gap)
			}
		}
		if gap := began[10].Sub(began[9]); gap > 10*time.Second+250*time.Millisecond {
			t.Errorf("after it was mended the pause is %v", gap-10*time.Second)
		}
		if log := out.String(); strings.Count(log, "duty of the leader fails") != 2 || strings.Count(log, "the duty goes on") != 2 {
			t.Errorf("logged:\n%s", log)
		}
	})
}

// TestALaterTermEndsAll: a write that meets a later term ends every duty, and says which term it was.
func TestALaterTermEndsAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := false
		err := duty.Run(t.Context(), 3, slog.New(slog.DiscardHandler), []duty.Duty{
			{Name: "steady", Run: func(ctx context.Context, _ int64) error {
				<-ctx.Done()
				ended = true
				return nil
			}},
			{Name: "fenced", Run: func(context.Context, int64) error {
				<-time.After(time.Second) // by the time of the bubble
				return fmt.Errorf("write: %w", &election.FencedError{Term: 9})
			}},
		})
		if fenced, ok := errors.AsType[*election.FencedError](err); !ok || fenced.Term != 9 || !ended {
			t.Errorf("got %v, ended %v", err, ended)
		}
	})
}
