package reads

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/postgres/replica"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Shard is where a shard can be read.
type Shard struct {
	set      *replica.Set
	primary  store.Reader
	replicas []store.Reader
}

// New makes what reads a shard from its primary and, through what open makes of their pools, from the replicas of a set.
func New(set *replica.Set, primary store.Reader, open func(*postgres.Pool) store.Reader) *Shard {
	s := &Shard{set: set, primary: primary}
	for _, pool := range set.Pools() {
		s.replicas = append(s.replicas, open(pool))
	}
	return s
}

// Run looks after the replicas until ctx is done.
func (s *Shard) Run(ctx context.Context) error { return s.set.Run(ctx) }

// Replicas tells how they are. It asks nobody.
func (s *Shard) Replicas() []*wigglev1.Replica {
	var list []*wigglev1.Replica
	for _, r := range s.set.Status() {
		out := &wigglev1.Replica{
			Index: int32(r.Index), Zone: r.Zone, Serving: r.State == replica.Serving, //nolint:gosec // an index
			Replayed: r.Replayed, Reads: r.Reads,
		}
		if !out.GetServing() {
			out.Reason = r.State.String() + ": " + r.Reason
		}
		if r.LagKnown {
			out.Lag = durationpb.New(r.Lag)
		}
		if !r.ProbedAt.IsZero() {
			out.ProbedAt = timestamppb.New(r.ProbedAt)
		}
		list = append(list, out)
	}
	return list
}

// Call says which call reads.
type Call struct {
	// Procedure is the call's, by which the table knows it.
	Procedure string
	// Primary asks the primary although the table allows a replica.
	Primary bool
	// NotBefore is a time by the shard's clock. A replica must have all that was committed before it. Zero: no such need.
	NotBefore time.Time
}

// Do has a call read a shard where the table says. read may run several times, each time from the start. What does not
// exist on a replica ([store.ErrNotFound]) is asked of the primary. The span of the call is told who answered.
func Do[T any](
	ctx context.Context, s *Shard, c Call, read func(ctx context.Context, r store.Reader) (T, error),
) (T, replica.Source, error) {
	var answer T
	attempt := func(ctx context.Context, from replica.Source) (err error) {
		answer, err = read(ctx, s.reader(from))
		if !from.Primary() && errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("%w: %w", replica.ErrNotHere, err)
		}
		return err
	}
	var from replica.Source
	var err error
	switch freshness, _ := FreshnessOf(c.Procedure); {
	case freshness == Bounded && !c.Primary:
		from, err = s.set.Read(ctx, replica.Need{NotBefore: c.NotBefore}, attempt)
	case freshness == Bounded, freshness == Primary:
		from, err = s.set.ReadPrimary(ctx, attempt)
	default:
		err = fmt.Errorf("%s is no read, says the table of package reads", c.Procedure)
	}
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(attribute.String("wiggle.source", from.String()), attribute.Int64("wiggle.staleness_ms", from.Lag.Milliseconds()))
	if err != nil {
		var none T // whatever an attempt had by then
		return none, from, err
	}
	return answer, from, nil
}

func (s *Shard) reader(from replica.Source) store.Reader {
	if from.Primary() {
		return s.primary
	}
	return s.replicas[from.Replica()]
}
