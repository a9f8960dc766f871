package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// What bounds one poll.
const (
	// readPage is how many entries are read at a time, and maxPages how many pages without a pause where the filter leaves
	// nearly all of them out.
	readPage = 250
	maxPages = 40
	// maxBytes bounds the payloads of an answer: the router gathers one of every shard.
	maxBytes = 4 << 20
)

// query is a poll as a feed sees it.
type query struct {
	after  int64
	filter filter
	most   int
	wait   time.Duration
}

// filter says which entries are wanted.
type filter struct {
	namespace        string
	workflows, types []string
	// only are the workflows that whoever polls may see; nil for all. What it may not see is passed like what it does not want.
	only *permission.Names
}

func (f *filter) takes(e *store.StoredEvent) bool {
	return e.Namespace == f.namespace && f.only.Match(e.Workflow) && (len(f.workflows) == 0 || slices.Contains(f.workflows, e.Workflow)) &&
		(len(f.types) == 0 || slices.ContainsFunc(f.types, func(pattern string) bool { return covers(pattern, e.Type) }))
}

// covers tells whether a pattern stands for a type.
func covers(pattern, kind string) bool {
	if begin, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(kind, begin)
	}
	return kind == pattern
}

// taken is what a poll has found so far.
type taken struct {
	events []*wigglev1.Event
	upTo   int64
	bytes  int
}

// poll reads what follows, and waits for it if there is nothing. It tells up to which number it has read.
func (f *Feed) poll(ctx context.Context, q query) (taken, error) {
	found := taken{upTo: q.after}
	var over <-chan time.Time
	if q.wait > 0 {
		timer := time.NewTimer(q.wait)
		defer timer.Stop()
		over = timer.C
		defer f.join()()
	}
	for pages := 1; ; pages++ {
		armed := f.armed()
		page, err := f.log.ReadEvents(ctx, found.upTo, readPage)
		if err != nil {
			return taken{}, fmt.Errorf("poll events: %w", err)
		}
		full := f.take(&found, page, &q)
		switch {
		case full, len(found.events) > 0 && !page.More, q.wait == 0 && !page.More:
			return found, nil
		case page.More && pages%maxPages != 0:
			continue
		case page.More && (q.wait == 0 || len(found.events) > 0):
			return found, nil
		case page.More:
			armed = closed()
		}
		select {
		case <-armed:
		case <-over:
			return found, nil
		case <-f.draining:
			return found, nil
		case <-ctx.Done():
			return taken{}, ctx.Err()
		}
	}
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// take adds what is wanted of a page, until the answer is full.
func (f *Feed) take(found *taken, page store.EventPage, q *query) (full bool) {
	for i := range page.Events {
		e := &page.Events[i]
		if q.filter.takes(e) {
			if size := len(e.Payload); len(found.events) == q.most || found.bytes+size > maxBytes && len(found.events) > 0 {
				return true
			}
			found.events = append(found.events, f.event(e))
			found.bytes += len(e.Payload)
		}
		found.upTo = e.Seq
	}
	found.upTo = page.UpTo
	return len(found.events) == q.most
}

func (f *Feed) event(e *store.StoredEvent) *wigglev1.Event {
	out := &wigglev1.Event{
		Cursor: eventcursor.Encode(eventcursor.Cursor{f.shard: e.Seq}), Shard: int32(f.shard), Seq: e.Seq, //nolint:gosec // a shard fits
		InstanceId: shardid.NewInstance(f.shard, ulid.ULID(e.Instance)).String(), Namespace: e.Namespace, Workflow: e.Workflow,
		Version: e.Version, Key: e.Key, Type: e.Type, Node: e.Node, Time: timestamppb.New(e.Time), Revision: e.Revision,
	}
	if e.Payload != nil {
		out.Payload = &wigglev1.Payload{ContentType: "application/json", Data: e.Payload}
	}
	return out
}

// start is the number behind which somebody begins who is not known.
func (f *Feed) start(ctx context.Context, where wigglev1.EventStart) (int64, error) {
	tail, earliest, err := f.log.EventBounds(ctx)
	if err != nil {
		return 0, fmt.Errorf("find where to begin: %w", err)
	}
	if where == wigglev1.EventStart_EVENT_START_EARLIEST {
		return earliest, nil
	}
	return tail, nil
}

// position is the number behind which a poll reads. It is not known where neither the consumer is nor the cursor names the
// shard, and the poll does not say where to begin: then it depends on what other shards know.
func (f *Feed) position(ctx context.Context, req *wigglev1.PollEventsRequest, after eventcursor.Cursor) (seq int64, known bool, err error) {
	given, named := after[f.shard]
	if req.GetConsumer() != "" {
		switch acked, err := f.log.EventConsumer(ctx, req.GetConsumer()); {
		case err == nil:
			return max(acked, given), true, nil
		case !errors.Is(err, store.ErrNotFound):
			return 0, false, err
		}
	}
	switch {
	case named && req.GetConsumer() == "":
		return given, true, nil
	case named: // forgotten, and still there
		tail, err := f.start(ctx, wigglev1.EventStart_EVENT_START_TAIL)
		if err != nil {
			return 0, false, err
		}
		seq = min(given, tail)
	case req.GetStart() == wigglev1.EventStart_EVENT_START_UNSPECIFIED:
		return 0, false, nil
	default:
		if seq, err = f.start(ctx, req.GetStart()); err != nil {
			return 0, false, err
		}
	}
	if req.GetConsumer() == "" {
		return seq, true, nil
	}
	acked, err := f.log.AddEventConsumer(ctx, req.GetConsumer(), seq)
	return max(acked, given), true, err
}
