package backends

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
)

const (
	// firstPause is how soon a process that just failed is probed again; the pause doubles up to the interval.
	firstPause = 25 * time.Millisecond
	// streamPause is the pause before a broken stream of hints is opened again.
	streamPause = 250 * time.Millisecond
)

// Client holds the services of one instances process that a router calls.
type Client struct {
	Instances wigglev1connect.InstanceServiceClient
	Workers   wigglev1connect.WorkerServiceClient
	// Work is the one call of Workers whose messages are passed on as bytes.
	Work      *connect.Client[rpc.Raw[wigglev1.WorkRequest], rpc.Raw[wigglev1.WorkResponse]]
	Workflows wigglev1connect.WorkflowServiceClient
	Events    wigglev1connect.EventServiceClient
	Shards    wiggleinternalv1connect.ShardServiceClient
	Scans     wiggleinternalv1connect.ScanServiceClient
	Scopes    wiggleinternalv1connect.ScopeServiceClient
}

// Process is one instances process, by its address. The process behind an address may change: it is then known by a new
// process id.
type Process struct {
	Client

	name string
	set  *Set
	kick chan struct{}

	calls, bytes atomic.Int64 // in hand

	// Guarded by the set's mutex.
	health health
	missed int
	status *wiggleinternalv1.StatusResponse
	alive  context.Context //nolint:containedctx // its end is the process's end, which concerns every call to it
	die    context.CancelFunc
	up     chan struct{} // closed while the process is not down
}

type health int

const (
	down health = iota
	suspect
	up
)

func (h health) String() string { return [...]string{"down", "suspect", "up"}[h] }

func newProcess(set *Set, name string, client Client) *Process {
	p := &Process{Client: client, name: name, set: set, kick: make(chan struct{}, 1), up: make(chan struct{})}
	p.alive, p.die = context.WithCancel(context.Background())
	p.die()
	return p
}

// Name is the process's address, for logs.
func (p *Process) Name() string { return p.name }

// Alive is done when the process is found to be gone. What was asked before will not be answered.
func (p *Process) Alive() context.Context {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	return p.alive
}

// What a process may have in hand of one router. So one that hangs does not take all that the router has room for, and the
// connections to it, each of which carries so many calls, are bounded too.
const (
	maxCalls     = 10_000
	maxCallBytes = 128 << 20
)

// Enter takes a place for a call that holds so many bytes. One that yields is refused at half of what others may take. leave
// gives the place back.
func (p *Process) Enter(bytes int, yields bool) (leave func(), ok bool) {
	part := int64(1)
	if yields {
		part = 2
	}
	held := p.bytes.Add(int64(bytes))
	if p.calls.Add(1) > maxCalls/part || held > maxCallBytes/part && held > int64(bytes) {
		p.leave(bytes)
		return nil, false
	}
	return func() { p.leave(bytes) }, true
}

func (p *Process) leave(bytes int) {
	p.calls.Add(-1)
	p.bytes.Add(-int64(bytes))
}

// run looks after the process until ctx is done.
func (p *Process) run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.watchLoop(ctx)
	}()
	p.probeLoop(ctx)
	<-done
	p.set.gone(p)
}

func (p *Process) probeLoop(ctx context.Context) {
	next := firstPause
	for ctx.Err() == nil {
		if p.probe(ctx) {
			next = firstPause
			pause.For(ctx, pause.Jitter(p.set.cfg.Interval), p.kick)
			continue
		}
		pause.For(ctx, pause.Jitter(next), p.kick)
		next = min(2*next, p.set.cfg.Interval)
	}
}

// probe asks once and tells whether the process answered.
func (p *Process) probe(ctx context.Context) bool {
	try, cancel := context.WithTimeout(ctx, p.set.cfg.Timeout)
	defer cancel()
	status, err := p.Shards.Status(try, &wiggleinternalv1.StatusRequest{})
	switch {
	case ctx.Err() != nil:
		return false
	case err == nil:
		p.set.answered(p, status)
		return true
	case try.Err() != nil:
		p.set.missedProbe(p)
		return false
	default:
		p.set.lost(p, err)
		return false
	}
}

// watchLoop keeps the stream of hints open while the process is up.
func (p *Process) watchLoop(ctx context.Context) {
	for ctx.Err() == nil {
		if !p.awaitUp(ctx) {
			return
		}
		alive := p.Alive()
		streamCtx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(alive, cancel)
		err := p.watch(streamCtx)
		stop()
		cancel()
		if ctx.Err() != nil {
			return
		}
		p.set.cfg.Logger.DebugContext(ctx, "work hints ended", slog.String("process", p.name), slog.Any("error", err))
		p.probeSoon() // the end of a stream is how the end of its process shows first
		if !pause.For(ctx, pause.Jitter(streamPause), nil) {
			return
		}
	}
}

func (p *Process) watch(ctx context.Context) error {
	stream, err := p.Shards.WatchWork(ctx, &wiggleinternalv1.WatchWorkRequest{})
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // the stream is over, its error is Err's
	// What became ready while no stream was open was hinted to nobody.
	p.set.resync(p)
	for stream.Receive() {
		for _, hint := range stream.Msg().GetHints() {
			p.set.cfg.OnHint(p, int(hint.GetShard()), hint.GetNamespace(), hint.GetQueue())
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return errors.New("the process ended the stream")
}

func (p *Process) awaitUp(ctx context.Context) bool {
	p.set.mu.Lock()
	ready := p.up
	p.set.mu.Unlock()
	select {
	case <-ready:
		return true
	case <-ctx.Done():
		return false
	}
}

// probeSoon asks the probe loop not to wait for its time.
func (p *Process) probeSoon() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}
