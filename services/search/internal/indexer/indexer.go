package indexer

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/index"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
)

const (
	// Group is the name under which all search processes follow the stream.
	Group = "search"
	// batchSize is how many events are taken together at most, and gatherTime how long those that follow the first are
	// waited for: an instance that ends as soon as it began is read once then.
	batchSize  = 1000
	gatherTime = 100 * time.Millisecond
	// HoldTime is how long an instance that was started is kept back, unless it ends before: most that are short-lived are
	// read and written once then. At most maxHeld are, so that the stream has others to give.
	HoldTime = 500 * time.Millisecond
	maxHeld  = 4000
	// rest is how long an indexer that has a full batch behind it rests, in terms of what the batch took: what it makes up for
	// takes a quarter of its time, as work on the same machines goes before.
	rest    = 3
	maxRest = 2 * time.Second
	// idleTime is how long one call waits for an event.
	idleTime = 5 * time.Second
	// errorPause is the pause after an error, which grows eightfold with further ones.
	errorPause = 250 * time.Millisecond
	// readSize is how many instances one call to a router asks for.
	readSize = 250
	// DefaultRetry is when an event that could not be dealt with is delivered again. It doubles up to lastRetry.
	DefaultRetry = 500 * time.Millisecond
	lastRetry    = 30 * time.Second
	// maxRefusals is how often a document that the database refuses is tried.
	maxRefusals = 5
	// lifeEvents begins the types of events of the life of an instance.
	lifeEvents = "wf."
)

// Source reads instances.
type Source interface {
	Get(ctx context.Context, refs []*wigglev1.InstanceRef) ([]*wigglev1.InstanceOutcome, error)
}

// Indexer follows the stream. Several may, in one process or many.
type Indexer struct {
	feed    *bus.Follower
	source  Source
	index   *index.Index
	delays  *Delays
	metrics *Metrics
	log     *slog.Logger

	// Retry is when an event that could not be dealt with is delivered again, at first. It is set before the first batch.
	Retry time.Duration

	// Tracer makes the spans of what is indexed. Nil: none. It is set before the first batch.
	Tracer trace.Tracer

	// Hold is HoldTime, unless it is set otherwise before the first batch.
	Hold time.Duration

	sick bool // the last batch failed
	held map[document.Key]*item
}

// New makes an indexer.
func New(feed *bus.Follower, source Source, x *index.Index, delays *Delays, metrics *Metrics, log *slog.Logger) *Indexer {
	return &Indexer{
		feed: feed, source: source, index: x, delays: delays, metrics: metrics, log: log, Retry: DefaultRetry,
		Hold: HoldTime, held: map[document.Key]*item{},
	}
}

// Run follows until ctx is done.
func (x *Indexer) Run(ctx context.Context) error {
	defer x.letGo()
	return lifecycle.Loop{
		Interval: errorPause, Immediate: true,
		RunOnce: func(ctx context.Context) error {
			if err := x.RunOnce(ctx); err != nil {
				return err
			}
			return lifecycle.ErrMore // the next fetch waits
		},
		OnError: func(err error) {
			if !x.sick {
				x.log.WarnContext(ctx, "events are not indexed at the moment; they wait", slog.Any("error", err))
			}
			x.sick = true
		},
	}.Run(ctx)
}

// RunOnce takes one batch, if there is any within some seconds, and deals with it. Its error means that nothing of it could
// be dealt with.
func (x *Indexer) RunOnce(ctx context.Context) error {
	deliveries, err := x.gather(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	x.group(deliveries)
	b := &batch{Indexer: x}
	due := x.due(began)
	err = b.index(x.begin(ctx, due), due)
	endSpans(due, err)
	if err != nil {
		return err
	}
	if len(deliveries) == batchSize {
		wait(ctx, min(rest*time.Since(began), maxRest))
	}
	if x.sick && len(deliveries) > 0 {
		x.sick = false
		x.log.InfoContext(ctx, "events are indexed again")
	}
	return nil
}

// gather waits for an event, and a moment for those that follow it.
func (x *Indexer) gather(ctx context.Context) ([]bus.Delivery, error) {
	got, err := x.feed.Fetch(ctx, batchSize, x.idle(time.Now()))
	if err != nil || len(got) == 0 || len(got) == batchSize {
		return got, err
	}
	if !wait(ctx, gatherTime) {
		return nil, context.Cause(ctx)
	}
	more, err := x.feed.Fetch(ctx, batchSize-len(got), 0)
	if err != nil {
		x.log.DebugContext(ctx, "no further events", slog.Any("error", err)) // the next batch meets it again
	}
	return append(got, more...), nil
}

// wait waits, and tells whether ctx still goes on.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// idle is how long the next event may be waited for.
func (x *Indexer) idle(now time.Time) time.Duration {
	least := idleTime
	for _, it := range x.held {
		least = min(least, it.since.Add(x.Hold).Sub(now))
	}
	return max(least, time.Millisecond)
}

// due takes out of what is held what has ended, or was held for long enough; all, if it is too much.
func (x *Indexer) due(now time.Time) []*item {
	all := len(x.held) > maxHeld
	var due []*item
	for key, it := range x.held {
		if all || it.ended || now.Sub(it.since) >= x.Hold {
			due = append(due, it)
			delete(x.held, key)
		}
	}
	return due
}

// letGo gives back what is held, for another process, or this one's next life.
func (x *Indexer) letGo() {
	for key, it := range x.held {
		for _, e := range it.events {
			_ = e.Retry(0)
		}
		delete(x.held, key)
	}
}

// item is an instance that events are about.
type item struct {
	key    document.Key
	ref    *wigglev1.InstanceRef
	events []*bus.Delivery
	since  time.Time  // when the first of them came
	ended  bool       // one of them is no start
	span   trace.Span // of its being indexed, if that is sampled
}

// attempt is how often the item was delivered, by the event that was so least often.
func (it *item) attempt() int {
	least := it.events[0].Attempt
	for _, e := range it.events {
		least = min(least, e.Attempt)
	}
	return least
}

// started is the type of the event with which an instance begins.
const started = lifeEvents + "started"

// group puts the instances that events are about to those that are held. Events that change no instance are acknowledged.
func (x *Indexer) group(deliveries []bus.Delivery) {
	for i := range deliveries {
		d := &deliveries[i]
		if !strings.HasPrefix(d.Type, lifeEvents) {
			_ = d.Ack()
			continue
		}
		key, err := document.ParseKey(d.Instance)
		if err != nil {
			x.log.Warn("left out an event whose instance is none", "shard", d.Shard, "seq", d.Seq, "error", err)
			_ = d.Ack()
			continue
		}
		it := x.held[key]
		if it == nil {
			it = &item{key: key, ref: &wigglev1.InstanceRef{InstanceId: d.Instance}, since: time.Now()}
			x.held[key] = it
		}
		it.events = append(it.events, d)
		it.ended = it.ended || d.Type != started
		it.ref.MinRevision = max(it.ref.GetMinRevision(), d.Revision)
	}
}

// batch is one batch under way.
type batch struct {
	*Indexer

	mu     sync.Mutex
	done   int
	failed int
	err    error // one of those that failed
}

// index brings the documents of instances up to date.
func (b *batch) index(ctx context.Context, items []*item) error {
	var docs []doc
	var gone []*item
	for len(items) > 0 {
		n := min(len(items), readSize)
		more, notThere := b.read(ctx, items[:n])
		docs, gone = append(docs, more...), append(gone, notThere...)
		items = items[n:]
	}
	var wg sync.WaitGroup
	for shard, part := range index.Split(b.Indexer.index, docs, func(d doc) document.Key { return d.item.key }) {
		wg.Go(func() { b.write(ctx, shard, part) })
	}
	for shard, part := range index.Split(b.Indexer.index, gone, func(it *item) document.Key { return it.key }) {
		wg.Go(func() { b.remove(ctx, shard, part) })
	}
	wg.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case b.failed > 0 && b.done == 0:
		return b.err
	case b.failed > 0:
		b.log.WarnContext(ctx, "some events could not be indexed yet; they come again",
			slog.Int("instances", b.failed), slog.Any("error", b.err))
	}
	return nil
}

// doc is an item with its document.
type doc struct {
	item *item
	*document.Document
}

// read reads instances and makes their documents; gone are those that are not there any more.
func (b *batch) read(ctx context.Context, items []*item) (docs []doc, gone []*item) {
	refs := make([]*wigglev1.InstanceRef, len(items))
	for i, it := range items {
		refs[i] = it.ref
	}
	outcomes, err := b.source.Get(ctx, refs)
	if err != nil {
		b.again(ctx, items, fmt.Errorf("read instances: %w", err))
		return nil, nil
	}
	for i, o := range outcomes {
		it, fault := items[i], o.GetFault()
		switch {
		case fault.GetCode() == int32(faults.CodeNotFound):
			gone = append(gone, it)
		case fault != nil:
			b.again(ctx, items[i:i+1], fmt.Errorf("read instance %s: %w", it.ref.GetInstanceId(), faults.FromProto(fault)))
		default:
			d, err := document.From(o.GetInstance())
			if err != nil || d.Key != it.key {
				b.refused(ctx, it, fmt.Errorf("make the document of instance %s: %w", it.ref.GetInstanceId(), err))
				continue
			}
			docs = append(docs, doc{it, d})
		}
	}
	return docs, gone
}

// errNotReady: the search shard cannot be used.
var errNotReady = faults.Unavailable(time.Second, "the search shard does not answer")

// write writes documents to their shard: all together, or, if the database refuses that, one by one.
func (b *batch) write(ctx context.Context, shard *index.Shard, part []doc) {
	items, docs := make([]*item, len(part)), make([]*document.Document, len(part))
	for i, d := range part {
		items[i], docs[i] = d.item, d.Document
	}
	err := error(errNotReady)
	if shard.Ready() {
		_, err = shard.Store.Upsert(ctx, docs)
	}
	switch {
	case err == nil:
		b.acknowledge(ctx, items)
	case postgres.Classify(err) != postgres.Permanent || err == error(errNotReady): //nolint:errorlint // this very value
		b.again(ctx, items, fmt.Errorf("search shard %d: %w", shard.ID, err))
	case len(part) == 1:
		b.refused(ctx, items[0], err)
	default:
		for i := range part {
			b.write(ctx, shard, part[i:i+1])
		}
	}
}

// remove deletes the documents of instances that are not there any more, unless another batch has found them since.
func (b *batch) remove(ctx context.Context, shard *index.Shard, items []*item) {
	gone := make([]searchstore.Head, len(items))
	for i, it := range items {
		gone[i] = searchstore.Head{Key: it.key, Revision: it.ref.GetMinRevision()}
	}
	err := error(errNotReady)
	if shard.Ready() {
		_, err = shard.Store.Delete(ctx, gone)
	}
	if err != nil {
		b.again(ctx, items, fmt.Errorf("search shard %d: %w", shard.ID, err))
		return
	}
	b.acknowledge(ctx, items)
}

// acknowledge tells that items are dealt with. An event whose acknowledgement is lost comes again, and changes nothing then.
func (b *batch) acknowledge(ctx context.Context, items []*item) {
	now := time.Now()
	for _, it := range items {
		for _, e := range it.events {
			_ = e.Ack()
			delay := now.Sub(e.Time)
			b.delays.Note(now, delay)
			b.metrics.done(ctx, e.Shard, delay)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done += len(items)
}

// again has the events of items delivered again.
func (b *batch) again(ctx context.Context, items []*item, err error) {
	for _, it := range items {
		for _, e := range it.events {
			_ = e.Retry(b.pause(e.Attempt))
			b.metrics.retried.Add(ctx, 1, b.metrics.of(e.Shard))
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed, b.err = b.failed+len(items), err
	for _, it := range items {
		it.failed(err)
	}
}

// refused deals with an item that will be refused again. It is tried some times all the same, as what refuses it may be
// mended, and then given up.
func (b *batch) refused(ctx context.Context, it *item, err error) {
	if it.attempt() < maxRefusals {
		b.again(ctx, []*item{it}, err)
		return
	}
	b.log.ErrorContext(ctx, "an instance cannot be indexed and is left out of the index",
		slog.String("instance", it.ref.GetInstanceId()), slog.String("error", postgres.Detail(err)))
	for _, e := range it.events {
		_ = e.Ack()
		b.metrics.skipped.Add(ctx, 1, b.metrics.of(e.Shard))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	it.failed(err)
	b.done++
}

// pause is how long an event waits that was delivered so often.
func (x *Indexer) pause(attempt int) time.Duration {
	d := x.Retry
	for range attempt - 1 {
		if d *= 2; d >= lastRetry {
			return lastRetry
		}
	}
	return d
}
