package wiggle_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// batched makes a fake that has a batched flow, and a worker with a handler for each
// letter of steps: it adds its name to the context, or does what extra says.
func batched(
	t *testing.T, opts wiggle.WorkerOptions, steps string, build func(f *wiggle.Flow), extra map[string]func(context.Context) error,
) (*fake, *wiggle.Worker) {
	t.Helper()
	f := newFake()
	f.defs["flow"] = wiggle.Define("flow", build, wiggle.Batched()).Proto()
	w := newWorker(t, f, opts)
	for name := range strings.SplitSeq(steps, "") {
		wiggle.HandleTask(w, name, func(ctx context.Context, in string) (string, error) {
			if do := extra[name]; do != nil {
				if err := do(ctx); err != nil {
					return "", err
				}
			}
			return in + name, nil
		})
	}
	return f, w
}

// takes is a step that takes its time, whatever its context says.
func takes(d time.Duration) func(context.Context) error {
	return func(context.Context) error { <-time.After(d); return nil }
}

func letters(steps string, opts ...wiggle.StepOption) func(f *wiggle.Flow) {
	return func(f *wiggle.Flow) {
		for name := range strings.SplitSeq(steps, "") {
			f.Task(name, opts...)
		}
	}
}

// first is the task of a flow's first step.
func first(step string) *wigglev1.Task {
	return &wigglev1.Task{Id: "1", Step: step, Version: 1, Batched: true, Context: data(`""`)}
}

// told is what a report tells: the first step's result, then each node with its outcome.
func told(r *wigglev1.StepReport) string {
	out := string(r.GetResult().GetData())
	for _, f := range r.GetFollowedBy() {
		switch o := f.GetOutcome().(type) {
		case *wigglev1.FollowingStep_Result:
			out += fmt.Sprintf(" %s=%s", f.GetNode(), o.Result.GetData())
		case *wigglev1.FollowingStep_Unchanged:
			out += fmt.Sprintf(" %s", f.GetNode())
		case *wigglev1.FollowingStep_Gate:
			out += fmt.Sprintf(" %s=%t", f.GetNode(), o.Gate)
		case *wigglev1.FollowingStep_Choice:
			out += fmt.Sprintf(" %s=%s", f.GetNode(), o.Choice)
		}
	}
	return out
}

// seeBatch runs a worker until nothing more happens, and wants one report.
func seeBatch(t *testing.T, f *fake, w *wiggle.Worker, task *wigglev1.Task, want string) {
	t.Helper()
	stop := start(t, w)
	f.push(task)
	f.pass(time.Minute)
	stop()
	if len(f.reports) != 1 || len(f.fails) > 0 || len(f.released) > 0 {
		t.Fatalf("reports %v, failures %v, handed back %v", f.reports, f.fails, f.released)
	}
	if got := told(f.reports[0]); got != want {
		t.Errorf("told %s, want %s", got, want)
	}
}

// TestBatch: the steps that follow are run with what those before them made, and told
// in one report with their own times (WRK-14, WRK-16).
func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var infos []wiggle.TaskInfo
		note := func(ctx context.Context) { infos = append(infos, wiggle.TaskFrom(ctx)); time.Sleep(time.Second) }
		f, w := batched(t, wiggle.WorkerOptions{BatchTime: time.Minute}, "abc", func(f *wiggle.Flow) {
			f.Task("a")
			f.Gate("open")
			f.Effect("log", wiggle.Activity("tell"))
			f.Choose("pick").Case("no", task("d")).Case("yes", task("b"))
			f.Gate("again").Otherwise(task("c"))
		}, nil)
		wiggle.HandleGate(w, "open", func(ctx context.Context, in string) (bool, error) { note(ctx); return in == "a", nil })
		wiggle.HandleEffect(w, "tell", func(ctx context.Context, in string) error { note(ctx); return nil })
		wiggle.HandleChoose(w, "pick", func(ctx context.Context, _ string) (string, error) { note(ctx); return "yes", nil })
		wiggle.HandleGate(w, "again", func(ctx context.Context, in string) (bool, error) { note(ctx); return in != "ab", nil })
		task := first("a")
		task.BaseContext, task.Element = data(`"base"`), &wigglev1.Element{Index: 3}
		seeBatch(t, f, w, task, `"a" open=true log pick=yes b="ab" again=false c="abc"`)
		last := f.reports[0].GetFinishedAt().AsTime()
		for _, step := range f.reports[0].GetFollowedBy() {
			if began, ended := step.GetStartedAt().AsTime(), step.GetFinishedAt().AsTime(); began.Before(last) || ended.Before(began) {
				t.Errorf("%s ran from %s to %s, the step before it ended %s", step.GetNode(), began, ended, last)
			} else {
				last = ended
			}
		}
		if took := last.Sub(f.reports[0].GetStartedAt().AsTime()); took != 4*time.Second {
			t.Errorf("the batch took %s", took)
		}
		if i := infos[1]; len(infos) != 4 || i.Node != "log" || i.Activity != "tell" || i.Attempt != 1 || i.ID != "1" || i.Queue != "default" ||
			i.Element.Index != 3 || len(infos[2].Cases) != 2 {
			t.Errorf("handlers were told %+v", infos)
		}
	})
}

// TestBatchEnds: what a worker does not run by itself ends the batch.
func TestBatchEnds(t *testing.T) {
	endings := map[string]func(f *wiggle.Flow){
		"queue":   func(f *wiggle.Flow) { f.Task("c", wiggle.Queue("other")) },
		"handler": func(f *wiggle.Flow) { f.Task("nobody") },
		"kind":    func(f *wiggle.Flow) { f.Effect("c") },
		"sleep":   func(f *wiggle.Flow) { f.Sleep(time.Nanosecond); f.Task("c") },
		"fork": func(f *wiggle.Flow) {
			f.Fork(wiggle.Branch("l", task("c")), wiggle.Branch("r", task("d"))).Combine("m")
		},
		"for_each": func(f *wiggle.Flow) { f.ForEach("", task("c")).Combine("m") },
		"one attempt": func(f *wiggle.Flow) {
			f.Task("c", wiggle.Retry(1, 0))
		},
		"lease expiry is final": func(f *wiggle.Flow) {
			f.Task("c", wiggle.RetryPolicy{NonRetryable: []string{"wiggle.LeaseExpired"}})
		},
		"end": func(*wiggle.Flow) {},
	}
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, w := batched(t, wiggle.WorkerOptions{}, "abcd", func(f *wiggle.Flow) { letters("ab")(f); ending(f) }, nil)
				seeBatch(t, f, w, first("a"), `"a" b="ab"`)
			})
		})
	}
}

// TestBatchStaysInItsBranch: the join behind a branch's steps is the server's.
func TestBatchStaysInItsBranch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := batched(t, wiggle.WorkerOptions{}, "abcm", func(f *wiggle.Flow) {
			f.Fork(wiggle.Branch("l", letters("ab")), wiggle.Branch("r", task("c"))).Combine("m")
		}, nil)
		seeBatch(t, f, w, first("a"), `"a" b="ab"`)
	})
}

// TestBatchBounds: steps, bytes and time.
func TestBatchBounds(t *testing.T) {
	slow := takes(time.Second)
	for name, c := range map[string]struct {
		opts wiggle.WorkerOptions
		want string
	}{
		"none":  {wiggle.WorkerOptions{}, `"a" b="ab" c="abc" d="abcd"`},
		"steps": {wiggle.WorkerOptions{BatchSteps: 3}, `"a" b="ab" c="abc"`},
		"one":   {wiggle.WorkerOptions{BatchSteps: 1}, `"a"`},
		"bytes": {wiggle.WorkerOptions{BatchBytes: 7}, `"a" b="ab"`},
		"time":  {wiggle.WorkerOptions{BatchTime: 1500 * time.Millisecond}, `"a" b="ab"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				extra := map[string]func(context.Context) error{"a": slow, "b": slow, "c": slow}
				f, w := batched(t, c.opts, "abcd", letters("abcd"), extra)
				seeBatch(t, f, w, first("a"), c.want)
			})
		})
	}
}

// TestDurableTaskIsNoBatch: without Task.batched nothing is run ahead.
func TestDurableTaskIsNoBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := batched(t, wiggle.WorkerOptions{}, "ab", letters("ab"), nil)
		task := first("a")
		task.Batched = false
		seeBatch(t, f, w, task, `"a"`)
	})
}

// TestLastAttemptIsNoBatch: a crash may not cost an instance its last attempt of a step
// that is done.
func TestLastAttemptIsNoBatch(t *testing.T) {
	for attempt, want := range map[int32]string{2: `"a" b="ab"`, 3: `"a"`} {
		synctest.Test(t, func(t *testing.T) {
			f, w := batched(t, wiggle.WorkerOptions{}, "ab", letters("ab", wiggle.Retry(3, time.Second)), nil)
			task := first("a")
			task.Attempt = attempt
			seeBatch(t, f, w, task, want)
		})
	}
}

// TestCheckpoint: the report goes out before the next step is run.
func TestCheckpoint(t *testing.T) {
	for step, want := range map[string]string{"a": `"a"`, "b": `"a" b="ab"`, "d": `"a" b="ab" c="abc" d="abcd"`} {
		synctest.Test(t, func(t *testing.T) {
			extra := map[string]func(context.Context) error{step: func(ctx context.Context) error { wiggle.Checkpoint(ctx); return nil }}
			f, w := batched(t, wiggle.WorkerOptions{}, "abcd", letters("abcd"), extra)
			seeBatch(t, f, w, first("a"), want)
		})
	}
	wiggle.Checkpoint(t.Context()) // outside of a handler: nothing
}

// TestBatchFailure: a step that fails is left to the server, whatever the failure, and
// what was done before it is reported.
func TestBatchFailure(t *testing.T) {
	for name, fail := range map[string]func(ctx context.Context) error{
		"error":     func(context.Context) error { return wiggle.NonRetryable(errors.New("no")) },
		"panic":     func(context.Context) error { panic("no") },
		"goroutine": func(context.Context) error { runtime.Goexit(); return nil },
		"timeout":   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"deaf":      takes(3 * time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, w := batched(t, wiggle.WorkerOptions{}, "abcd", func(f *wiggle.Flow) {
					letters("ab")(f)
					letters("cd", wiggle.Timeout(2*time.Second))(f)
				}, map[string]func(context.Context) error{"c": fail})
				seeBatch(t, f, w, first("a"), `"a" b="ab"`)
			})
		})
	}
}

// TestBatchHeedsTheFirstDeadline: the server waits for the first step no longer than its
// timeout, so a slow step after it is interrupted in time.
func TestBatchHeedsTheFirstDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		f, w := batched(t, wiggle.WorkerOptions{BatchTime: time.Hour}, "abc", letters("abc"), map[string]func(context.Context) error{"c": wait})
		task := first("a")
		task.Deadline = timestamppb.New(time.Now().Add(time.Hour + 8*time.Second)) // the server's clock is an hour ahead
		begin := time.Now()
		reported := time.Time{}
		f.onReport = func(*wigglev1.StepReport) *wigglev1.Fault { reported = time.Now(); return nil }
		seeBatch(t, f, w, task, `"a" b="ab"`)
		if took := reported.Sub(begin); took != 6*time.Second {
			t.Errorf("reported after %s of 8", took)
		}
	})
}

// TestBatchOfAWorkerThatStops: no further step is begun, and what is done is reported.
func TestBatchOfAWorkerThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := takes(2 * time.Second)
		f, w := batched(t, wiggle.WorkerOptions{}, "abc", letters("abc"), map[string]func(context.Context) error{"b": slow})
		stop := start(t, w)
		f.push(first("a"))
		f.pass(time.Second)
		if took := stop(); took != time.Second {
			t.Errorf("stopped after %s", took)
		}
		if len(f.reports) != 1 || told(f.reports[0]) != `"a" b="ab"` || len(f.released) > 0 {
			t.Errorf("reports %v, handed back %v", f.reports, f.released)
		}
	})
}

// TestBatchThatIsInterrupted: after the grace the step that runs is dropped and what
// was done before it is reported.
func TestBatchThatIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		f, w := batched(t, wiggle.WorkerOptions{Grace: time.Second}, "abc", letters("abc"), map[string]func(context.Context) error{"c": wait})
		stop := start(t, w)
		f.push(first("a"))
		f.pass(time.Second)
		stop()
		if len(f.reports) != 1 || told(f.reports[0]) != `"a" b="ab"` || len(f.released) > 0 || len(f.fails) > 0 {
			t.Errorf("reports %v, handed back %v, failures %v", f.reports, f.released, f.fails)
		}
	})
}

// TestBatchWithoutItsLease: once the lease is lost nothing more is run.
func TestBatchWithoutItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		ran := ""
		extra := map[string]func(context.Context) error{}
		for _, name := range []string{"a", "b", "c"} {
			extra[name] = func(context.Context) error {
				mu.Lock()
				ran += name
				mu.Unlock()
				time.Sleep(2 * time.Second)
				return nil
			}
		}
		f, w := batched(t, wiggle.WorkerOptions{Lease: 3 * time.Second}, "abc", letters("abc"), extra)
		f.onBeat = func(*wigglev1.Beat) *wigglev1.Fault { return leaseLost() }
		stop := start(t, w)
		f.push(first("a"))
		f.pass(time.Minute)
		stop()
		if len(f.reports) > 0 || len(f.fails) > 0 || ran != "a" {
			t.Errorf("ran %s, reports %v, failures %v", ran, f.reports, f.fails)
		}
	})
}

// TestProgressWithinABatch: what a later step says of its progress is not taken for
// that of the first, whose lease it runs under.
func TestProgressWithinABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beat := func(ctx context.Context) error {
			time.Sleep(2 * time.Second)
			return wiggle.Heartbeat(ctx, wiggle.TaskFrom(ctx).Step)
		}
		f, w := batched(t, wiggle.WorkerOptions{}, "ab", letters("ab"), map[string]func(context.Context) error{"a": beat, "b": beat})
		seeBatch(t, f, w, first("a"), `"a" b="ab"`)
		for _, b := range f.beats {
			if p := string(b.GetProgress().GetData()); p != "" && p != `"a"` {
				t.Errorf("progress %s", p)
			}
		}
	})
}

// TestBatchThatIsRefused: the first step goes again alone, and the others are left to
// the server.
func TestBatchThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := batched(t, wiggle.WorkerOptions{}, "abc", letters("abc"), nil)
		refusals := 0
		f.onReport = func(r *wigglev1.StepReport) *wigglev1.Fault {
			if len(r.GetFollowedBy()) == 0 {
				return nil
			}
			refusals++
			return &wigglev1.Fault{Code: int32(connect.CodeResourceExhausted), Message: "too large", Kind: &wigglev1.Fault_LimitExceeded{}}
		}
		seeBatch(t, f, w, first("a"), `"a"`)
		if refusals != 1 {
			t.Errorf("the batch was sent %d times", refusals)
		}
	})
}

// TestBatchWithoutADefinition: while the definition cannot be read steps are reported
// one by one, and it is not asked for each time.
func TestBatchWithoutADefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := batched(t, wiggle.WorkerOptions{Logger: slog.New(slog.DiscardHandler)}, "ab", letters("ab"), nil)
		def := f.defs["flow"]
		delete(f.defs, "flow")
		stop := start(t, w)
		for i, want := range []string{`"a"`, `"a"`, `"a" b="ab"`} {
			if i == 2 {
				f.pass(11 * time.Second)
			}
			task := first("a")
			task.Id = strconv.Itoa(i + 1)
			f.push(task)
			f.pass(time.Second)
			if len(f.reports) != i+1 || told(f.reports[i]) != want {
				t.Errorf("reports %v, want the last to tell %s", f.reports, want)
			}
			f.locked(func() { f.defs["flow"] = def })
		}
		stop()
	})
}
