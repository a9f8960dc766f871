package wiggletest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
	"github.com/wiggle-run/wiggle/wiggletest"
)

type reminder struct {
	To   string
	Sent int
}

// TestMonthOfSleep: a workflow that sleeps for 30 days, twice, with a failure in
// between, is tested in no time (WF-23).
func TestMonthOfSleep(t *testing.T) {
	t.Parallel()
	srv := wiggletest.New(t, wiggletest.WithShards(2))
	client := srv.Client()
	flow := wiggle.Define("reminder", func(f *wiggle.Flow) {
		f.Sleep(30 * 24 * time.Hour)
		f.Task("send", wiggle.Retry(3, time.Hour))
		f.Sleep(30 * 24 * time.Hour)
		f.Task("send again", wiggle.Activity("send"))
	})
	if _, err := client.Register(t.Context(), flow); err != nil {
		t.Fatal(err)
	}
	worker := wiggle.NewWorker(client, wiggle.WorkerOptions{})
	wiggle.HandleTask(worker, "send", func(ctx context.Context, in reminder) (reminder, error) {
		if wiggle.TaskFrom(ctx).Attempt == 1 && in.Sent == 0 {
			return in, wiggle.ErrorType("busy", context.DeadlineExceeded)
		}
		in.Sent++
		return in, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	begun := srv.Now()
	run, err := client.Start(t.Context(), "reminder", reminder{To: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	srv.Advance(31 * 24 * time.Hour)
	if in, err := client.Get(t.Context(), run.ID); err != nil || in.State.Ended() {
		t.Fatalf("after a month: %+v, %v", in, err)
	}
	srv.Advance(30 * 24 * time.Hour)
	out, err := wiggle.Result[reminder](t.Context(), run)
	if err != nil || out.Sent != 2 || out.To != "ada" {
		t.Fatalf("result: %+v, %v", out, err)
	}
	if passed := srv.Now().Sub(begun); passed != 61*24*time.Hour {
		t.Fatalf("the clock moved by %s", passed)
	}
}

// TestBatched: a batched workflow runs as any other, but a worker runs by itself what
// follows (WRK-14). A step that fails within a batch is tried again by itself.
func TestBatched(t *testing.T) {
	t.Parallel()
	past := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	srv := wiggletest.New(t, wiggletest.WithTime(past))
	client := srv.Client()
	flow := wiggle.Define("batched", func(f *wiggle.Flow) {
		f.Task("a")
		f.Task("b")
		f.Sleep(30 * 24 * time.Hour)
		f.Task("c")
		f.Task("d", wiggle.Retry(3, time.Hour))
		f.Task("e")
	}, wiggle.Batched())
	if _, err := client.Register(t.Context(), flow); err != nil {
		t.Fatal(err)
	}
	worker := wiggle.NewWorker(client, wiggle.WorkerOptions{})
	var handed, alone []string
	for _, step := range []string{"a", "b", "c", "d", "e"} {
		wiggle.HandleTask(worker, step, func(ctx context.Context, in string) (string, error) {
			// The server's clock stands in the past: what it did not hand out is of today.
			info := wiggle.TaskFrom(ctx)
			if ofServer := info.DispatchedAt.Year() < 2002; ofServer {
				handed = append(handed, step)
			} else {
				alone = append(alone, step)
			}
			if step == "d" && len(alone) < 3 && info.Attempt == 1 {
				return "", context.DeadlineExceeded
			}
			return in + step, nil
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	run, err := client.Start(t.Context(), "batched", "")
	if err != nil {
		t.Fatal(err)
	}
	srv.Advance(31 * 24 * time.Hour)
	out, err := wiggle.Result[string](t.Context(), run)
	stop()
	if err := errors.Join(err, <-done); err != nil || out != "abcde" {
		t.Fatalf("result: %q, %v", out, err)
	}
	// d failed within the batch, and again when it was handed out; its second attempt began a batch of its own.
	if got, want := fmt.Sprint(handed, alone), "[a c d d] [b d e]"; got != want {
		t.Errorf("handed out and run alone: %s, want %s", got, want)
	}
	attempts := map[string]int{}
	for e, err := range run.History(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Step != "" {
			attempts[e.Step]++
		}
	}
	if want := map[string]int{"a": 1, "b": 1, "c": 1, "d": 2, "e": 1}; !maps.Equal(attempts, want) {
		t.Errorf("attempts in the history: %v, want %v", attempts, want)
	}
}
