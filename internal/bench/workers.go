package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/child"
	"github.com/wiggle-run/wiggle/internal/bench/steps"
)

// workers are the processes that run the steps.
type workers struct {
	children []*child.Process
	tally    *steps.Tally
	reading  sync.WaitGroup
}

// startWorkers starts worker processes, each with so many sessions, and waits until all poll.
func (c *cluster) startWorkers(ctx context.Context, sessions int) error {
	w := &workers{tally: steps.NewTally(c.opts.Workers)}
	c.workers = w
	ports, err := child.FreePorts(c.opts.Workers)
	if err != nil {
		return err
	}
	ready := make(chan struct{}, c.opts.Workers)
	for i := range c.opts.Workers {
		args := []string{
			steps.CommandWorker, "--server", c.url, "--sessions", strconv.Itoa(sessions), "--concurrency", strconv.Itoa(c.opts.Concurrency),
		}
		pprof := fmt.Sprintf("127.0.0.1:%d", ports[i])
		if c.opts.Profile != "" {
			args = append(args, "--pprof", pprof)
		}
		p, err := child.Start(c.command(args...), c.dir, processWorker, fmt.Sprintf("-%d", i+1), c.environment())
		if err != nil {
			return err
		}
		if c.opts.Profile != "" {
			p.Profiles = "http://" + pprof
		}
		w.children = append(w.children, p)
		w.reading.Go(func() { w.tally.Follow(i, p.Stdout, func() { ready <- struct{}{} }) })
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	look := time.NewTicker(readyEvery)
	defer look.Stop()
	for range w.children {
		for waiting := true; waiting; {
			select {
			case <-ready:
				waiting = false
			case <-look.C:
				if err := c.ended(); err != nil {
					return err
				}
			case <-ctx.Done():
				return fmt.Errorf("the workers were not ready: %w", context.Cause(ctx))
			}
		}
	}
	return nil
}

func (c *cluster) stopWorkers(ctx context.Context) {
	if c.workers == nil {
		return
	}
	for _, p := range c.workers.children {
		p.Stop(ctx)
	}
	c.workers.reading.Wait()
	c.workers = nil
}
