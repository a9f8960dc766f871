package feed

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/rpc"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

const (
	defaultWait   = 30 * time.Second
	maxWait       = time.Minute
	defaultEvents = 100
	maxEvents     = 1000
	// reserved begins the names of consumers that are Wiggle's own.
	reserved = "wiggle."
	// actionRead is the action of PollEvents, as its proto has it.
	actionRead = "event.read"
)

// Feeds finds the feed of a shard that can be used now; a fault if it is not served, or its database is not there.
type Feeds func(shard int) (*Feed, error)

// Server implements EventService for the shards of a process, each for itself: a call names its shard in the header.
type Server struct{ feeds Feeds }

// NewServer makes the server.
func NewServer(feeds Feeds) *Server { return &Server{feeds: feeds} }

func (s *Server) named(ctx context.Context) (*Feed, error) {
	id, ok := wirerpc.ShardFromContext(ctx)
	if !ok {
		return nil, faults.InvalidArgument("the call names no shard: set the header %s, or call the router", wirerpc.ShardHeader)
	}
	return s.feeds(id)
}

// PollEvents reads the log of one shard. Without a cursor in its answer the shard does not know where to begin, and has
// not: the caller asks again and says so.
func (s *Server) PollEvents(ctx context.Context, req *wigglev1.PollEventsRequest) (*wigglev1.PollEventsResponse, error) {
	f, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	q, after, err := queryOf(req)
	if err != nil {
		return nil, err
	}
	q.filter.only = identity.Within(ctx, actionRead, q.filter.namespace)
	var known bool
	if q.after, known, err = f.position(ctx, req, after); err != nil {
		return nil, rpc.Fault(f.shard, err)
	}
	if !known {
		return &wigglev1.PollEventsResponse{}, nil
	}
	found, err := f.poll(ctx, q)
	if err != nil {
		return nil, rpc.Fault(f.shard, err)
	}
	return &wigglev1.PollEventsResponse{
		Events: found.events, Cursor: eventcursor.Encode(eventcursor.Cursor{f.shard: found.upTo}),
		Shards: []*wigglev1.ShardOutcome{{Shard: int32(f.shard), Count: int64(len(found.events))}}, //nolint:gosec // a shard fits
	}, nil
}

func queryOf(req *wigglev1.PollEventsRequest) (query, eventcursor.Cursor, error) {
	q := query{
		most: defaultEvents, wait: defaultWait,
		filter: filter{
			namespace: req.GetFilter().GetNamespace(), workflows: req.GetFilter().GetWorkflows(), types: req.GetFilter().GetTypes(),
		},
	}
	if err := checkConsumer(req.GetConsumer()); err != nil {
		return q, nil, err
	}
	if q.filter.namespace == "" {
		q.filter.namespace = "default"
	}
	for _, kind := range q.filter.types {
		if strings.Contains(strings.TrimSuffix(kind, ".*"), "*") {
			return q, nil, faults.InvalidArgument(
				"the type %.140q of the filter: a '*' stands behind a '.' at the end, as in \"order.*\"", kind)
		}
	}
	if n := int(req.GetMaxEvents()); n > 0 {
		q.most = min(n, maxEvents)
	}
	if req.GetWait() != nil {
		q.wait = min(max(req.GetWait().AsDuration(), 0), maxWait)
	}
	after, err := cursorOf(req.GetAfter())
	return q, after, err
}

func cursorOf(text string) (eventcursor.Cursor, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // nothing was read
	}
	c, err := eventcursor.Decode(text)
	if err != nil {
		return nil, faults.InvalidArgument("%v", err)
	}
	return c, nil
}

func checkConsumer(name string) error {
	if strings.HasPrefix(name, reserved) {
		return faults.InvalidArgument("the consumer %.140q is Wiggle's own: names that begin with %q cannot be used", name, reserved)
	}
	return nil
}

// AckEvents acknowledges what a cursor names of one shard.
func (s *Server) AckEvents(ctx context.Context, req *wigglev1.AckEventsRequest) (*wigglev1.AckEventsResponse, error) {
	f, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkConsumer(req.GetConsumer()); err != nil {
		return nil, err
	}
	c, err := cursorOf(req.GetCursor())
	if err != nil {
		return nil, err
	}
	if seq, ok := c[f.shard]; ok {
		if err := f.log.AckEvents(ctx, req.GetConsumer(), seq); err != nil {
			return nil, rpc.Fault(f.shard, err)
		}
	}
	return &wigglev1.AckEventsResponse{}, nil
}

// ListEventConsumers lists who follows the log of one shard.
func (s *Server) ListEventConsumers(
	ctx context.Context, _ *wigglev1.ListEventConsumersRequest,
) (*wigglev1.ListEventConsumersResponse, error) {
	f, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	list, err := f.log.EventConsumers(ctx)
	if err != nil {
		return nil, rpc.Fault(f.shard, err)
	}
	res := &wigglev1.ListEventConsumersResponse{
		Shards: []*wigglev1.ShardOutcome{{Shard: int32(f.shard), Count: int64(len(list))}}, //nolint:gosec // a shard fits
	}
	for _, c := range list {
		res.Consumers = append(res.Consumers, f.consumer(c))
	}
	return res, nil
}

func (f *Feed) consumer(c store.EventConsumer) *wigglev1.EventConsumer {
	return &wigglev1.EventConsumer{Name: c.Name, Positions: []*wigglev1.EventPosition{{
		Shard: int32(f.shard), Seq: c.Seq, Behind: c.Behind, AckedAt: timestamppb.New(c.AckedAt), //nolint:gosec // a shard fits
	}}}
}

// DeleteEventConsumer forgets a consumer on one shard.
func (s *Server) DeleteEventConsumer(
	ctx context.Context, req *wigglev1.DeleteEventConsumerRequest,
) (*wigglev1.DeleteEventConsumerResponse, error) {
	f, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkConsumer(req.GetConsumer()); err != nil {
		return nil, err
	}
	if err := f.log.DeleteEventConsumer(ctx, req.GetConsumer()); err != nil {
		return nil, rpc.Fault(f.shard, err)
	}
	return &wigglev1.DeleteEventConsumerResponse{}, nil
}
