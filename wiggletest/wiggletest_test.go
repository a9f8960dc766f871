package wiggletest_test

import (
	"context"
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
