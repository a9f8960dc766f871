package wiggle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// WorkerOptions sets up a [Worker]. The zero value is a good start.
type WorkerOptions struct {
	// Name of the worker, for people and the history. Default: host, process and a
	// random end.
	Name string
	// Queues to take work from. Default: "default".
	Queues []string
	// Concurrency is how many handlers run at the same time. Default: 16; at most
	// 1000.
	Concurrency int
	// Lease is how long the server leaves a task to a worker that is silent, 1 s to
	// 1 h. The worker renews leases at a third of it. It is also how long a task of
	// a worker that died waits. Default: 30 s.
	Lease time.Duration
	// Unary makes calls in place of the stream over which a worker else talks: polls,
	// reports, heartbeats. It means the same and costs more. It is for a network path
	// that takes nothing but HTTP/1.1, such as a proxy that does not speak HTTP/2 to
	// its servers. Without it the way to the server must take HTTP/2, without TLS
	// with prior knowledge (h2c): a worker that finds no stream logs an error and
	// tries again; it does not fall back by itself.
	Unary bool
	// PollWait is how long the server may hold a poll of a Unary worker that finds
	// nothing, at most 60 s. Default: 30 s.
	PollWait time.Duration
	// BatchSteps, BatchBytes and BatchTime bound a batch of a [Batched] workflow: how
	// many steps it has, from how many bytes of results on no further step is begun,
	// and how long after the begin of the first none is. Defaults: 100 (at most 1000;
	// 1 reports every step by itself), 256 KiB, 5 s.
	BatchSteps, BatchBytes int
	BatchTime              time.Duration
	// Grace is how long handlers may go on once the worker is to stop. Default: 10 s;
	// negative means none.
	Grace time.Duration
	// SkipCheck leaves out the check of the handlers against the registered
	// workflows.
	SkipCheck bool
	// Logger. Default: the client's.
	Logger *slog.Logger
	// TracerProvider makes a span for each step. Default: the client's.
	TracerProvider trace.TracerProvider
}

const (
	defaultConcurrency = 16
	maxConcurrency     = 1000
	defaultLease       = 30 * time.Second
	defaultPollWait    = 30 * time.Second
	defaultGrace       = 10 * time.Second
	defaultQueue       = "default"
)

// Worker runs the steps of workflows: it takes tasks from a server, hands them to
// handlers, keeps their leases and reports what comes out. All of that goes over one
// stream, which it opens (or, see [WorkerOptions.Unary], by calls): it needs no
// inbound connection. A stream that breaks is opened again, with the tasks in hand;
// what was not answered is sent again. Register its handlers, then [Worker.Run] it.
type Worker struct {
	client *Client
	opts   WorkerOptions
	logger *slog.Logger
	tracer trace.Tracer

	graphs graphs // of batched workflows

	mu        sync.Mutex
	started   bool
	shared    map[string]handler           // by activity
	workflows map[string]*WorkflowHandlers // by workflow
}

// NewWorker makes a worker of the client's namespace. It makes no call.
func NewWorker(c *Client, opts WorkerOptions) *Worker {
	if opts.Name == "" {
		opts.Name = workerName()
	}
	if len(opts.Queues) == 0 {
		opts.Queues = []string{defaultQueue}
	}
	opts.Queues = slices.Clone(opts.Queues)
	if opts.Concurrency <= 0 {
		opts.Concurrency = defaultConcurrency
	}
	opts.Concurrency = min(opts.Concurrency, maxConcurrency)
	if opts.Lease <= 0 {
		opts.Lease = defaultLease
	}
	opts.Lease = min(max(opts.Lease, time.Second), time.Hour)
	if opts.PollWait <= 0 {
		opts.PollWait = defaultPollWait
	}
	opts.PollWait = min(opts.PollWait, time.Minute)
	opts.batchDefaults()
	if opts.Grace == 0 {
		opts.Grace = defaultGrace
	}
	opts.Grace = max(opts.Grace, 0)
	if opts.Logger == nil {
		opts.Logger = c.logger
	}
	if opts.TracerProvider == nil {
		opts.TracerProvider = c.tracers
	}
	return &Worker{
		client: c, opts: opts,
		logger:    opts.Logger.With(slog.String("worker", opts.Name)),
		tracer:    opts.TracerProvider.Tracer(tracerName),
		shared:    map[string]handler{},
		workflows: map[string]*WorkflowHandlers{},
	}
}

// Name of the worker.
func (w *Worker) Name() string { return w.opts.Name }

// WorkflowHandlers are the handlers of one workflow, made by [Worker.Workflow].
type WorkflowHandlers struct {
	worker   *Worker
	name     string
	versions []int
	handlers map[string]handler
}

// Workflow says that the worker serves a workflow, at the given versions or at
// every one, and is where handlers for it alone are registered. A worker that names
// workflows takes tasks of no other; one that names none takes whatever waits in
// its queues. Handlers that were registered with the worker itself serve where
// the workflow has none of that name.
func (w *Worker) Workflow(name string, versions ...int) *WorkflowHandlers {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		panic(fmt.Sprintf("wiggle: workflow %q is named after the worker has started", name))
	}
	h := w.workflows[name]
	if h == nil {
		h = &WorkflowHandlers{worker: w, name: name, handlers: map[string]handler{}}
		w.workflows[name] = h
	}
	h.versions = append(h.versions, versions...)
	return h
}

func (w *Worker) handle(name string, h handler) { w.register(w.shared, "", name, h) }

func (h *WorkflowHandlers) handle(name string, fn handler) {
	h.worker.register(h.handlers, h.name, name, fn)
}

// register panics for what can only be a mistake in the program.
func (w *Worker) register(into map[string]handler, workflow, name string, h handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		panic(fmt.Sprintf("wiggle: handler %q is registered after the worker has started", name))
	}
	if name == "" {
		panic("wiggle: a handler without a name")
	}
	if _, ok := into[name]; ok {
		panic(fmt.Sprintf("wiggle: handler %q is registered twice%s", name, forWorkflow(workflow)))
	}
	into[name] = h
}

func forWorkflow(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" for workflow %q", name)
}

// handler finds the handler of an activity. The maps do not change once the worker
// has started.
func (w *Worker) handler(workflow, activity string) (handler, bool) {
	if s := w.workflows[workflow]; s != nil {
		if h, ok := s.handlers[activity]; ok {
			return h, true
		}
	}
	h, ok := w.shared[activity]
	return h, ok
}

// bindings are the workflows that the worker asks for.
func (w *Worker) bindings() []*wigglev1.WorkflowBinding {
	var out []*wigglev1.WorkflowBinding
	for _, name := range sortedKeys(w.workflows) {
		versions := w.workflows[name].versions
		if len(versions) == 0 {
			versions = []int{0}
		}
		for _, v := range versions {
			out = append(out, &wigglev1.WorkflowBinding{Workflow: name, Version: toInt32(v)})
		}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Run serves until ctx is done, and then stops in order: it takes no more tasks,
// lets handlers finish within the grace, cancels the contexts of the others with
// [ErrWorkerStopped], reports what is done and hands the rest back to the server
// without spending an attempt. A few seconds after the grace it returns nil,
// whether the server answers or not.
//
// Before it takes the first task it checks the handlers against the registered
// workflows, and returns an error that names all that does not fit: a step on the
// worker's queues without a handler, a handler of the wrong kind. A server that is
// away is waited for, and one that does not accept the worker's API key, or does not let
// it read workflows, is an error. Later it is logged, and the worker goes on asking: a
// key in a file ([WithAPIKeyFile]) may be replaced meanwhile. A worker runs once.
func (w *Worker) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.started {
		w.mu.Unlock()
		return errors.New("wiggle: the worker has been started before")
	}
	w.started = true
	w.mu.Unlock()

	if !w.opts.SkipCheck {
		if err := w.check(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
	w.logger.LogAttrs(ctx, slog.LevelInfo, "wiggle: worker started",
		slog.Any("queues", w.opts.Queues), slog.Int("concurrency", w.opts.Concurrency))
	newSession(w).run(ctx)
	w.logger.LogAttrs(ctx, slog.LevelInfo, "wiggle: worker stopped")
	return nil
}

func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), rand.Text()[:6])
}
