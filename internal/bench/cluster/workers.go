package cluster

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

// Workers are worker processes, each with so many sessions, and handlers at a time in each of those.
type Workers struct{ Processes, Sessions, Concurrency int }

// StartWorkers starts workers, and waits until all poll.
func (c *Cluster) StartWorkers(ctx context.Context, want Workers) error {
	w := &workers{tally: steps.NewTally(want.Processes)}
	c.workers = w
	ports, err := child.FreePorts(want.Processes)
	if err != nil {
		return err
	}
	ready := make(chan struct{}, want.Processes)
	for i := range want.Processes {
		args := []string{
			steps.CommandWorker, "--server", c.URL, "--sessions", strconv.Itoa(want.Sessions),
			"--concurrency", strconv.Itoa(want.Concurrency),
		}
		pprof := fmt.Sprintf("127.0.0.1:%d", ports[i])
		if c.cfg.Profiles {
			args = append(args, "--pprof", pprof)
		}
		p, err := child.Start(c.command(args...), c.Dir, processWorker, fmt.Sprintf("-%d", i+1), c.environment())
		if err != nil {
			return err
		}
		if c.cfg.Profiles {
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
				if err := c.Ended(); err != nil {
					return err
				}
			case <-ctx.Done():
				return fmt.Errorf("the workers were not ready: %w", context.Cause(ctx))
			}
		}
	}
	return nil
}

// StopWorkers ends the workers, if there are any.
func (c *Cluster) StopWorkers(ctx context.Context) {
	if c.workers == nil {
		return
	}
	for _, p := range c.workers.children {
		p.Stop(ctx)
	}
	c.workers.reading.Wait()
	c.workers = nil
}
