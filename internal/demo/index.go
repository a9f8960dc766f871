package demo

import (
	"context"
	"fmt"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// indexLook is how often the search index is asked how far it is.
	indexLook = 50 * time.Millisecond
	// indexStall is how long it may stand still before the run is given up.
	indexStall = 30 * time.Second
)

// awaitIndex waits until the search index has every order as it ended.
func (r *run) awaitIndex(ctx context.Context) error {
	pause := time.NewTicker(indexLook)
	defer pause.Stop()
	filter := wiggle.SearchFilter{
		Workflows: []string{Workflow}, CreatedFrom: r.began.Add(-clockSlack),
		States: []wiggle.State{wiggle.Completed, wiggle.Failed, wiggle.Cancelled},
	}
	lastAt := time.Now()
	for {
		found, err := r.client.SearchFacets(ctx, "", filter)
		if err != nil {
			return fmt.Errorf("ask the search index: %w", err)
		}
		if n := int(found.Total); n != r.result.Indexed {
			r.result.Indexed, lastAt = n, time.Now()
		}
		if r.result.Indexed >= r.result.Started {
			break
		}
		if time.Since(lastAt) > indexStall {
			return fmt.Errorf("the search index stands still: it has %d of %d orders", r.result.Indexed, r.result.Started)
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	status, err := r.client.IndexStatus(ctx)
	if err != nil {
		return fmt.Errorf("ask the search index: %w", err)
	}
	r.result.IndexDelayP99 = status.DelayP99
	return nil
}
