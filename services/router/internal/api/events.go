package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/merge"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

const (
	defaultEvents    = 100
	defaultEventWait = 30 * time.Second
	maxEventWait     = time.Minute
	// reservedConsumers begins the names of consumers that are Wiggle's own.
	reservedConsumers = "wiggle."
)

// PollEvents implements wigglev1connect.EventServiceHandler (EVT-5). Every shard is asked at once for what it has. If none
// has anything they are asked again, to wait, and the first that has something ends it for all: what the others may have
// found at that moment they find again, as nothing moves before it is acknowledged.
func (s *Services) PollEvents(ctx context.Context, req *wigglev1.PollEventsRequest) (*wigglev1.PollEventsResponse, error) {
	if err := checkConsumer(req.GetConsumer()); err != nil {
		return nil, err
	}
	after, err := decodeCursor(req.GetAfter())
	if err != nil {
		return nil, err
	}
	wait := defaultEventWait
	if req.GetWait() != nil {
		wait = min(max(req.GetWait().AsDuration(), 0), maxEventWait)
	}
	end := time.Now().Add(wait)
	answers, err := s.pollOnce(ctx, req, after)
	if err != nil {
		return nil, err
	}
	if wait > 0 && !found(answers) && ctx.Err() == nil {
		if err := s.pollWait(ctx, req, answers, end); err != nil {
			return nil, err
		}
	}
	return s.eventsOf(ctx, req, after, answers)
}

func checkConsumer(name string) error {
	if strings.HasPrefix(name, reservedConsumers) {
		return faults.InvalidArgument(
			"the consumer %.140q is Wiggle's own: names that begin with %q cannot be used", name, reservedConsumers)
	}
	return nil
}

func decodeCursor(text string) (eventcursor.Cursor, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // nothing was read
	}
	c, err := eventcursor.Decode(text)
	if err != nil {
		return nil, faults.InvalidArgument("%v", err)
	}
	return c, nil
}

// events is what one shard has of the log.
type events = answer[*wigglev1.PollEventsResponse]

func found(answers []events) bool {
	return slices.ContainsFunc(answers, func(a events) bool { return len(a.res.GetEvents()) > 0 })
}

// shardPoll is the part of a poll that one shard is asked, from a place or, without one, from where the shard knows.
func shardPoll(req *wigglev1.PollEventsRequest, after string, start wigglev1.EventStart, wait time.Duration) *wigglev1.PollEventsRequest {
	part := &wigglev1.PollEventsRequest{
		Consumer: req.GetConsumer(), Start: start, After: after, Filter: req.GetFilter(), MaxEvents: req.GetMaxEvents(),
		Wait: durationpb.New(wait), MissingShards: wigglev1.MissingShards_MISSING_SHARDS_FAIL,
	}
	if part.GetMaxEvents() == 0 {
		part.MaxEvents = defaultEvents
	}
	return part
}

// pollOnce asks every shard for what it has. A shard that knows neither the consumer nor the place begins where the request
// says. Where that says nothing, a consumer that no shard knows begins at the end; for one that other shards know, a shard
// that was away or is new begins with the earliest entry, so that nothing of it is lost.
func (s *Services) pollOnce(ctx context.Context, req *wigglev1.PollEventsRequest, after eventcursor.Cursor) ([]events, error) {
	ask := func(start wigglev1.EventStart) func(context.Context, backends.Client) (*wigglev1.PollEventsResponse, error) {
		return func(ctx context.Context, c backends.Client) (*wigglev1.PollEventsResponse, error) {
			return c.Events.PollEvents(ctx, shardPoll(req, req.GetAfter(), start, 0))
		}
	}
	answers, err := overAll(ctx, s, "PollEvents", req.GetMissingShards(), ask(req.GetStart()))
	if err != nil {
		return nil, err
	}
	start, unknown := wigglev1.EventStart_EVENT_START_TAIL, false
	for _, a := range answers {
		switch {
		case a.err != nil:
		case a.res.GetCursor() == "":
			unknown = true
		default:
			start = wigglev1.EventStart_EVENT_START_EARLIEST
		}
	}
	if !unknown {
		return answers, nil
	}
	if len(after) > 0 {
		start = wigglev1.EventStart_EVENT_START_EARLIEST
	}
	again, err := overAll(ctx, s, "PollEvents", req.GetMissingShards(), ask(start))
	if err != nil {
		return nil, err
	}
	return again, nil
}

// pollWait waits until a shard has something, and puts that among the answers. Shards that did not answer are not waited
// for.
func (s *Services) pollWait(ctx context.Context, req *wigglev1.PollEventsRequest, answers []events, end time.Time) error {
	waitCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	draining := rpc.Draining(ctx)
	go func() {
		select {
		case <-draining:
			cancel()
		case <-waitCtx.Done():
		}
	}()
	var wg sync.WaitGroup
	for i := range answers {
		if answers[i].err != nil {
			continue
		}
		wg.Go(func() {
			a := &answers[i]
			a.res, a.err = s.waitOnShard(waitCtx, req, *a, end)
			if len(a.res.GetEvents()) > 0 || a.err != nil && req.GetMissingShards() != wigglev1.MissingShards_MISSING_SHARDS_PARTIAL {
				cancel()
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return missingOf(answers, req.GetMissingShards())
}

// waitOnShard waits until a shard has something, the end, or the end of ctx. When the process that waits for us goes away or
// ends the wait early, another one goes on with it.
func (s *Services) waitOnShard(
	ctx context.Context, req *wigglev1.PollEventsRequest, from events, end time.Time,
) (*wigglev1.PollEventsResponse, error) {
	last, answered := from.res, time.Now()
	for next := firstWaitPause; time.Now().Before(end); next = min(2*next, lastWaitPause) {
		c := route.Call{Shard: from.shard, Method: "PollEvents", Timeout: time.Until(end) + s.cfg.FanOutTimeout}
		res, err := route.Do(ctx, s.forward, c, func(ctx context.Context, c backends.Client) (*wigglev1.PollEventsResponse, error) {
			part := shardPoll(req, last.GetCursor(), wigglev1.EventStart_EVENT_START_UNSPECIFIED, max(time.Until(end), 0))
			return c.Events.PollEvents(ctx, part)
		})
		switch {
		case err == nil && len(res.GetEvents()) > 0:
			return res, nil
		case err == nil:
			last, answered = res, time.Now()
		case ctx.Err() != nil:
			return last, nil //nolint:nilerr // it waits until the end of ctx
		case !errors.Is(err, faults.ErrUnavailable) || time.Since(answered) > waitPatience:
			return nil, err
		}
		if !pause.For(ctx, min(pause.Jitter(next), time.Until(end)), nil) {
			break
		}
	}
	return last, nil
}

// maxEventBytes bounds the payloads of an answer.
const maxEventBytes = 4 << 20

// eventsOf merges what shards have.
func (s *Services) eventsOf(
	ctx context.Context, req *wigglev1.PollEventsRequest, after eventcursor.Cursor, answers []events,
) (*wigglev1.PollEventsResponse, error) {
	limit := int(req.GetMaxEvents())
	if limit == 0 {
		limit = defaultEvents
	}
	pages := make([]merge.EventPage, 0, len(answers))
	for _, a := range answers {
		if a.err != nil {
			continue
		}
		cursor, err := eventcursor.Decode(a.res.GetCursor())
		if err != nil {
			return nil, faults.Internal(fmt.Errorf("the cursor of shard %d: %w", a.shard, err))
		}
		pages = append(pages, merge.EventPage{Shard: a.shard, Events: a.res.GetEvents(), UpTo: cursor[a.shard]})
	}
	merged := merge.Events(after, pages, limit, maxEventBytes)
	res := &wigglev1.PollEventsResponse{Events: merged.Events, Cursor: eventcursor.Encode(merged.Cursor)}
	counts := merged.Counts
	for _, a := range answers {
		var count int64
		if a.err == nil {
			count, counts = counts[0], counts[1:]
		}
		res.Shards = append(res.Shards, s.outcome(ctx, a.shard, a.err, count, nil))
	}
	return res, nil
}

// AckEvents implements wigglev1connect.EventServiceHandler. Shards that the cursor does not name, or that are retired, have
// nothing to acknowledge.
func (s *Services) AckEvents(ctx context.Context, req *wigglev1.AckEventsRequest) (*wigglev1.AckEventsResponse, error) {
	if err := checkConsumer(req.GetConsumer()); err != nil {
		return nil, err
	}
	cursor, err := decodeCursor(req.GetCursor())
	if err != nil {
		return nil, err
	}
	shards := slices.DeleteFunc(slices.Clone(s.cluster().Instances()), func(shard int) bool {
		_, named := cursor[shard]
		return !named
	})
	_, err = overShards(ctx, s, shards, "AckEvents", wigglev1.MissingShards_MISSING_SHARDS_FAIL,
		func(ctx context.Context, c backends.Client) (*wigglev1.AckEventsResponse, error) {
			return c.Events.AckEvents(ctx, req)
		})
	return &wigglev1.AckEventsResponse{}, err
}

// ListEventConsumers implements wigglev1connect.EventServiceHandler.
func (s *Services) ListEventConsumers(
	ctx context.Context, req *wigglev1.ListEventConsumersRequest,
) (*wigglev1.ListEventConsumersResponse, error) {
	part := &wigglev1.ListEventConsumersRequest{MissingShards: wigglev1.MissingShards_MISSING_SHARDS_FAIL}
	answers, err := overAll(ctx, s, "ListEventConsumers", req.GetMissingShards(),
		func(ctx context.Context, c backends.Client) (*wigglev1.ListEventConsumersResponse, error) {
			return c.Events.ListEventConsumers(ctx, part)
		})
	if err != nil {
		return nil, err
	}
	res := &wigglev1.ListEventConsumersResponse{}
	byName := map[string]*wigglev1.EventConsumer{}
	for _, a := range answers { // by shard
		for _, c := range a.res.GetConsumers() {
			if known := byName[c.GetName()]; known != nil {
				known.Positions = append(known.Positions, c.GetPositions()...)
			} else {
				byName[c.GetName()] = c
			}
		}
		res.Shards = append(res.Shards, s.outcome(ctx, a.shard, a.err, int64(len(a.res.GetConsumers())), nil))
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		res.Consumers = append(res.Consumers, byName[name])
	}
	return res, nil
}

// DeleteEventConsumer implements wigglev1connect.EventServiceHandler.
func (s *Services) DeleteEventConsumer(
	ctx context.Context, req *wigglev1.DeleteEventConsumerRequest,
) (*wigglev1.DeleteEventConsumerResponse, error) {
	if err := checkConsumer(req.GetConsumer()); err != nil {
		return nil, err
	}
	_, err := overAll(ctx, s, "DeleteEventConsumer", wigglev1.MissingShards_MISSING_SHARDS_FAIL,
		func(ctx context.Context, c backends.Client) (*wigglev1.DeleteEventConsumerResponse, error) {
			return c.Events.DeleteEventConsumer(ctx, req)
		})
	return &wigglev1.DeleteEventConsumerResponse{}, err
}
