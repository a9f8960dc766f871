package router_test

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// eventLog is what a shard's database holds of events.
type eventLog struct {
	events    []*wigglev1.Event
	consumers map[string]int64
}

// log writes an event.
func (d *database) log(kind string) {
	d.update(func() {
		d.events.events = append(d.events.events, &wigglev1.Event{
			Shard: int32(d.shard), Seq: int64(len(d.events.events) + 1), Type: kind, Time: timestamppb.Now(),
		})
	})
}

// PollEvents does what the instances service does.
func (p *process) PollEvents(ctx context.Context, req *wigglev1.PollEventsRequest) (*wigglev1.PollEventsResponse, error) {
	d, err := p.enter(ctx, "PollEvents")
	if err != nil {
		return nil, err
	}
	cursor := eventcursor.Cursor{}
	if req.GetAfter() != "" {
		if cursor, err = eventcursor.Decode(req.GetAfter()); err != nil {
			return nil, faults.InvalidArgument("%v", err)
		}
	}
	over := time.NewTimer(req.GetWait().AsDuration())
	defer over.Stop()
	for {
		d.mu.Lock()
		from, known := d.events.begin(d.shard, req, cursor)
		changed := d.changed
		res := &wigglev1.PollEventsResponse{}
		for _, e := range d.events.events {
			if known && e.GetSeq() > from && len(res.GetEvents()) < int(req.GetMaxEvents()) {
				res.Events = append(res.Events, proto.CloneOf(e))
				cursor[d.shard] = e.GetSeq()
			}
		}
		d.mu.Unlock()
		if !known {
			return res, nil
		}
		cursor[d.shard] = max(from, cursor[d.shard])
		res.Cursor = eventcursor.Encode(eventcursor.Cursor{d.shard: cursor[d.shard]})
		if len(res.GetEvents()) > 0 || req.GetWait().AsDuration() == 0 {
			return res, nil
		}
		select {
		case <-changed:
		case <-over.C:
			return res, nil
		case <-rpc.Draining(ctx):
			return res, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// begin is where a poll begins, if that is known.
func (l *eventLog) begin(shard int, req *wigglev1.PollEventsRequest, cursor eventcursor.Cursor) (int64, bool) {
	given, named := cursor[shard]
	acked, known := l.consumers[req.GetConsumer()]
	switch {
	case known:
		return max(acked, given), true
	case named:
		return given, true
	case req.GetStart() == wigglev1.EventStart_EVENT_START_UNSPECIFIED:
		return 0, false
	case req.GetStart() == wigglev1.EventStart_EVENT_START_TAIL:
		given = int64(len(l.events))
	default:
	}
	if req.GetConsumer() != "" {
		if l.consumers == nil {
			l.consumers = map[string]int64{}
		}
		l.consumers[req.GetConsumer()] = given
	}
	return given, true
}

// AckEvents moves a consumer.
func (p *process) AckEvents(ctx context.Context, req *wigglev1.AckEventsRequest) (*wigglev1.AckEventsResponse, error) {
	d, err := p.enter(ctx, "AckEvents")
	if err != nil {
		return nil, err
	}
	cursor, err := eventcursor.Decode(req.GetCursor())
	if err != nil {
		return nil, faults.InvalidArgument("%v", err)
	}
	d.update(func() {
		d.events.consumers[req.GetConsumer()] = max(d.events.consumers[req.GetConsumer()], cursor[d.shard])
	})
	return &wigglev1.AckEventsResponse{}, nil
}

// ListEventConsumers lists the consumers of a shard.
func (p *process) ListEventConsumers(
	ctx context.Context, _ *wigglev1.ListEventConsumersRequest,
) (*wigglev1.ListEventConsumersResponse, error) {
	d, err := p.enter(ctx, "ListEventConsumers")
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	res := &wigglev1.ListEventConsumersResponse{}
	for _, name := range slices.Sorted(maps.Keys(d.events.consumers)) {
		res.Consumers = append(res.Consumers, &wigglev1.EventConsumer{
			Name: name, Positions: []*wigglev1.EventPosition{{Shard: int32(d.shard), Seq: d.events.consumers[name]}},
		})
	}
	return res, nil
}

// DeleteEventConsumer forgets a consumer on a shard.
func (p *process) DeleteEventConsumer(
	ctx context.Context, req *wigglev1.DeleteEventConsumerRequest,
) (*wigglev1.DeleteEventConsumerResponse, error) {
	d, err := p.enter(ctx, "DeleteEventConsumer")
	if err != nil {
		return nil, err
	}
	d.update(func() { delete(d.events.consumers, req.GetConsumer()) })
	return &wigglev1.DeleteEventConsumerResponse{}, nil
}
