package wiggle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// callTimeout bounds one attempt of a call that does not wait for anything.
const callTimeout = 30 * time.Second

// maxBatch is how many items one call may carry, and maxBatchBytes how many bytes
// of payload, unless one item alone has more: gRPC servers and proxies often take
// 4 MiB.
const (
	maxBatch      = 1000
	maxBatchBytes = 3 << 20
)

// StartOption sets something of a new instance.
type StartOption func(*wigglev1.StartInstanceRequest)

// WithULID gives the instance the caller's ulid (26 characters of Crockford base
// 32, case does not matter; its time at most five minutes ahead). The same start
// with the same ulid is applied once, however often and by whomever it is sent.
func WithULID(id string) StartOption {
	return func(r *wigglev1.StartInstanceRequest) { r.Ulid = strings.ToLower(id) }
}

// WithPriority gives the instance a priority from 0 (lowest) to 9. Without it: 5.
func WithPriority(p int) StartOption {
	return func(r *wigglev1.StartInstanceRequest) { v := toInt32(p); r.Priority = &v }
}

// WithDelay waits before the first step.
func WithDelay(d time.Duration) StartOption {
	return func(r *wigglev1.StartInstanceRequest) { r.Delay = durationpb.New(d) }
}

// WithVersion runs a version other than the latest.
func WithVersion(v int) StartOption {
	return func(r *wigglev1.StartInstanceRequest) { r.Version = toInt32(v) }
}

// Start starts one instance of a workflow with its input, in a span of its own. If the
// trace of ctx is sampled it goes with the instance: the spans of its steps continue it,
// and steps of an instance that is not sampled have none.
//
// The client mints the instance's ulid, so that a start whose answer is lost is
// sent again without a second instance. Errors: [ErrNotFound] for an unknown
// workflow or version, [ErrResourceExhausted] for an input over the limit,
// [ErrUnavailable]; and what [encoding/json] says about the input.
func (c *Client) Start(ctx context.Context, workflow string, input any, opts ...StartOption) (_ *Run, err error) {
	op := "start " + workflow
	ctx, span := c.startSpan(ctx, op)
	defer func() { endSpan(span, err) }()
	req, err := c.startRequest(ctx, workflow, input, opts)
	if err != nil {
		return nil, fmt.Errorf("wiggle: %s: %w", op, err)
	}
	res, err := call(ctx, c, op, callTimeout, c.instances.StartInstance, req)
	if err != nil {
		return nil, err
	}
	if span.IsRecording() {
		span.SetAttributes(attribute.String("wiggle.workflow", workflow), attribute.Int("wiggle.version", int(res.GetVersion())),
			attribute.String("wiggle.namespace", req.GetNamespace()), attribute.String("wiggle.instance.id", res.GetInstanceId()))
	}
	return c.started(res), nil
}

func (c *Client) startRequest(
	ctx context.Context, workflow string, input any, opts []StartOption,
) (*wigglev1.StartInstanceRequest, error) {
	payload, err := encode(input)
	if err != nil {
		return nil, err
	}
	req := &wigglev1.StartInstanceRequest{
		Namespace: c.namespace, Workflow: workflow, Input: payload, TraceContext: carried(ctx),
	}
	for _, o := range opts {
		o(req)
	}
	if req.GetUlid() == "" {
		id, err := ulid.New(ulid.Timestamp(time.Now()), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("mint an id: %w", err)
		}
		req.Ulid = strings.ToLower(id.String())
	}
	return req, nil
}

func (c *Client) started(res *wigglev1.StartInstanceResponse) *Run {
	return &Run{ID: res.GetInstanceId(), Version: int(res.GetVersion()), Created: res.GetCreated(), client: c}
}

// Start is one start of [Client.StartMany].
type Start struct {
	// Workflow to start.
	Workflow string
	// Input is the first context.
	Input any
	// Options of the start.
	Options []StartOption
}

// Started is the outcome of one start of [Client.StartMany].
type Started struct {
	// Run is the instance. nil if it was not started.
	Run *Run
	// Err says why not.
	Err error
}

// StartMany starts many instances and returns an outcome for each, in order. What
// failed for want of a server or a shard is tried again, alone. The error joins
// those of the outcomes, nil if all are started.
func (c *Client) StartMany(ctx context.Context, starts []Start) (_ []Started, err error) {
	ctx, span := c.startSpan(ctx, "start instances")
	span.SetAttributes(attribute.Int("wiggle.batch.size", len(starts)))
	defer func() { endSpan(span, err) }()
	out := make([]Started, len(starts))
	reqs := make([]*wigglev1.StartInstanceRequest, len(starts))
	open := make([]int, 0, len(starts))
	for i, s := range starts {
		req, err := c.startRequest(ctx, s.Workflow, s.Input, s.Options)
		if err != nil {
			out[i].Err = fmt.Errorf("wiggle: start %s: %w", s.Workflow, err)
			continue
		}
		reqs[i] = req
		open = append(open, i)
	}
	for attempt := 1; len(open) > 0; attempt++ {
		var err error
		open, err = c.startRound(ctx, reqs, open, out)
		pause, again := c.retries.next(ctx, attempt, err)
		if !again || sleep(ctx, pause) != nil {
			break
		}
	}
	errs := make([]error, 0, len(out))
	for _, o := range out {
		errs = append(errs, o.Err)
	}
	return out, errors.Join(errs...)
}

// startRound sends the open starts, and returns those that are worth another try
// with the error of one of them.
func (c *Client) startRound(
	ctx context.Context, reqs []*wigglev1.StartInstanceRequest, open []int, out []Started,
) (again []int, last error) {
	for len(open) > 0 {
		req, bytes := &wigglev1.StartInstancesRequest{}, 0
		for _, i := range open {
			bytes += len(reqs[i].GetInput().GetData())
			if n := len(req.GetStarts()); n == maxBatch || n > 0 && bytes > maxBatchBytes {
				break
			}
			req.Starts = append(req.Starts, reqs[i])
		}
		batch := open[:len(req.GetStarts())]
		open = open[len(batch):]
		res, err := once(ctx, callTimeout, c.instances.StartInstances, req)
		for n, i := range batch {
			op := "start " + reqs[i].GetWorkflow()
			e := toErrorOf(op, err, res.GetOutcomes(), n)
			if e == nil {
				out[i] = Started{Run: c.started(res.GetOutcomes()[n].GetStarted())}
				continue
			}
			out[i].Err = e
			if e.retryable() {
				again, last = append(again, i), e
			}
		}
	}
	return again, last
}

// toErrorOf is the error of the n-th start: the call's, or its own.
func toErrorOf(op string, err error, outcomes []*wigglev1.StartOutcome, n int) *Error {
	var e *Error
	switch {
	case err != nil:
		errors.As(toError(op, err), &e)
	case n >= len(outcomes):
		e = missingOutcome(op)
	default:
		e = faultError(op, outcomes[n].GetFault())
	}
	return e
}
