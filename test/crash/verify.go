package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
	"github.com/wiggle-run/wiggle/test/crash/ledger"
)

const (
	countPause = 250 * time.Millisecond
	// readers is how many instances are verified at the same time.
	readers = 4
	// pageSize makes histories come in several pages.
	pageSize = 60
)

// verdict is what was found out about one instance.
type verdict struct {
	run      *run
	instance *wigglev1.Instance
	history  []*wigglev1.HistoryEntry
	problems []string
}

// awaitEnds waits until no instance is running, or one has ended otherwise than
// completed, and returns the counts.
func awaitEnds(ctx context.Context, c cluster.Clients, want int) (map[wigglev1.InstanceState]int64, error) {
	for {
		counts := map[wigglev1.InstanceState]int64{}
		for _, workflow := range []string{workflowWide, workflowNarrow} {
			res, err := eventually(ctx, func(ctx context.Context) (*wigglev1.CountInstancesResponse, error) {
				return c.Instances.CountInstances(ctx, &wigglev1.CountInstancesRequest{
					Filter: &wigglev1.InstanceFilter{Workflow: workflow},
				})
			})
			if err != nil {
				return counts, fmt.Errorf("count instances: %w", err)
			}
			for _, s := range res.GetByState() {
				counts[s.GetState()] += s.GetCount()
			}
		}
		total := int64(0)
		for _, n := range counts {
			total += n
		}
		completed := counts[wigglev1.InstanceState_INSTANCE_STATE_COMPLETED]
		running := counts[wigglev1.InstanceState_INSTANCE_STATE_RUNNING]
		switch {
		case total != int64(want):
			return counts, fmt.Errorf("%d instances were started and there are %d: %v", want, total, counts)
		case completed+running != total:
			return counts, fmt.Errorf("some instances have not ended well: %v", counts)
		case running == 0:
			return counts, nil
		}
		if !cluster.Pause(ctx, countPause) {
			return counts, fmt.Errorf("the time is over and instances are still running: %v", counts)
		}
	}
}

// verifyAll reads every instance and holds it against what must be.
func verifyAll(ctx context.Context, c cluster.Clients, runs []*run, lines []ledger.Line) []*verdict {
	byInstance := map[string][]ledger.Line{}
	for _, l := range lines {
		byInstance[l.Instance] = append(byInstance[l.Instance], l)
	}
	verdicts := make([]*verdict, len(runs))
	next := make(chan int)
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for i := range next {
				verdicts[i] = verify(ctx, c, runs[i], byInstance[runs[i].id])
			}
		})
	}
	for i := range runs {
		next <- i
	}
	close(next)
	all.Wait()
	return verdicts
}

func verify(ctx context.Context, c cluster.Clients, r *run, lines []ledger.Line) *verdict {
	v := &verdict{run: r}
	if r.id == "" {
		v.problems = append(v.problems, "it was never started")
		return v
	}
	if err := v.read(ctx, c); err != nil {
		v.problems = append(v.problems, err.Error())
		return v
	}
	if state := v.instance.GetState(); state != wigglev1.InstanceState_INSTANCE_STATE_COMPLETED {
		v.problems = append(v.problems, fmt.Sprintf("it is %v (%v): %v", state, v.instance.GetFailure(), v.instance.GetTokens()))
	}
	var got order
	if err := json.Unmarshal(v.instance.GetContext().GetData(), &got); err != nil {
		v.problems = append(v.problems, fmt.Sprintf("its context: %v", err))
	} else if want := expect(r.input); !reflect.DeepEqual(got, want) {
		v.problems = append(v.problems, fmt.Sprintf("its context is %+v, want %+v", got, want))
	}
	if n := v.instance.GetActiveTokens(); n != 0 {
		v.problems = append(v.problems, fmt.Sprintf("it has %d active tokens", n))
	}
	v.problems = append(v.problems, ledger.Check(v.history, lines)...)
	return v
}

// read reads the instance and its whole history.
func (v *verdict) read(ctx context.Context, c cluster.Clients) error {
	res, err := eventually(ctx, func(ctx context.Context) (*wigglev1.GetInstanceResponse, error) {
		return c.Instances.GetInstance(ctx, &wigglev1.GetInstanceRequest{InstanceId: v.run.id})
	})
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	v.instance = res.GetInstance()
	for token := ""; ; {
		res, err := eventually(ctx, func(ctx context.Context) (*wigglev1.GetHistoryResponse, error) {
			return c.Instances.GetHistory(ctx, &wigglev1.GetHistoryRequest{InstanceId: v.run.id, PageToken: token, PageSize: pageSize})
		})
		if err != nil {
			return fmt.Errorf("history: %w", err)
		}
		v.history = append(v.history, res.GetEntries()...)
		if token = res.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

// runningAt counts the instances that ran at an instant.
func runningAt(verdicts []*verdict, at time.Time) int {
	n := 0
	for _, v := range verdicts {
		from, to := v.instance.GetCreatedAt().AsTime(), v.instance.GetEndedAt()
		if from.Before(at) && (to == nil || to.AsTime().After(at)) {
			n++
		}
	}
	return n
}

// figures are what a run amounted to, for people.
func figures(verdicts []*verdict, lines []ledger.Line, kills []time.Time) string {
	steps, expired, entries, bySort := 0, 0, 0, map[ledger.What]int{}
	var queued []time.Duration
	for _, v := range verdicts {
		entries += len(v.history)
		for _, e := range v.history {
			switch {
			case e.GetKind() == wigglev1.HistoryKind_HISTORY_KIND_STEP_COMPLETED:
				steps++
				queued = append(queued, e.GetDispatchedAt().AsTime().Sub(e.GetQueuedAt().AsTime()))
			case e.GetFailure().GetType() == "wiggle.LeaseExpired":
				expired++
			}
		}
	}
	for _, l := range lines {
		bySort[l.What]++
	}
	var running []int
	for _, at := range kills {
		running = append(running, runningAt(verdicts, at))
	}
	slices.Sort(running)
	text := fmt.Sprintf("%d instances, %d history entries, %d steps, %d leases ran out; told to workers: %v",
		len(verdicts), entries, steps, expired, bySort)
	slices.Sort(queued)
	if n := len(queued); n > 0 {
		text += fmt.Sprintf("; a step waited for a worker: median %s, of 100 all but one %s, most %s", rounded(queued[n/2]),
			rounded(queued[n*99/100]), rounded(queued[n-1]))
	}
	if n := len(running); n > 0 {
		text += fmt.Sprintf("; running at a kill: least %d, median %d, most %d", running[0], running[n/2], running[n-1])
	}
	return text
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
