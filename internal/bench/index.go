package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// indexTime is how long the index may be behind when the load has ended.
	indexTime = 10 * time.Minute
	// indexLook is how often it is asked.
	indexLook = 100 * time.Millisecond
)

// awaitIndex waits until the index has as many instances of a workflow as have ended since a time, and tells how long that
// took.
func (b *bench) awaitIndex(ctx context.Context, workflow string, since time.Time, want int64) (time.Duration, error) {
	began := time.Now()
	filter := wiggle.SearchFilter{
		Workflows: []string{workflow}, CreatedFrom: since, States: []wiggle.State{wiggle.Completed, wiggle.Failed, wiggle.Cancelled},
	}
	for {
		found, err := b.client.SearchFacets(ctx, "", filter)
		took := time.Since(began)
		if err != nil || found.Total >= want {
			return took, err
		}
		if took > indexTime {
			return took, fmt.Errorf("the index has %d of %d instances %v after the load has ended", found.Total, want, took)
		}
		if err := b.pause(ctx, indexLook); err != nil {
			return took, err
		}
	}
}

// followEvents follows the event log from its end until stop is called, which tells how many events came.
func (b *bench) followEvents(ctx context.Context) (stop func() (int64, error)) {
	ctx, cancel := context.WithCancel(ctx)
	var came int64
	done := make(chan error, 1)
	go func() {
		for _, err := range b.client.Events(ctx, "", wiggle.EventOptions{Start: wiggle.FromTail}) {
			if err != nil {
				done <- err
				return
			}
			came++
		}
		done <- nil
	}()
	return func() (int64, error) {
		cancel()
		err := <-done
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return came, err
	}
}
