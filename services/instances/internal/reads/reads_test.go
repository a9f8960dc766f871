package reads_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/wiggle-run/wiggle/pkg/postgres/replica"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/memstore"
)

// TestDo: a call reads as the table says, its span tells where, and one that is no read reads nothing.
func TestDo(t *testing.T) {
	t.Parallel()
	set, err := replica.New(replica.Config{Shard: topology.Shard{ID: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	shard := reads.New(set, memstore.New(time.Now), nil)
	spans := tracetest.NewSpanRecorder()
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(spans)).Tracer("test")
	count := func(procedure string) (replica.Source, bool, error) {
		ctx, span := tracer.Start(t.Context(), procedure)
		defer span.End()
		asked := false
		_, from, err := reads.Do(ctx, shard, reads.Call{Procedure: procedure},
			func(ctx context.Context, r store.Reader) (map[machine.InstanceState]int64, error) {
				asked = true
				return r.Count(ctx, store.Filter{})
			})
		return from, asked, err
	}
	for _, procedure := range []string{
		wigglev1connect.InstanceServiceCountInstancesProcedure, wigglev1connect.InstanceServiceGetInstanceProcedure,
	} {
		if from, asked, err := count(procedure); err != nil || !asked || !from.Primary() {
			t.Errorf("%s: read by %v (%v), %v", procedure, from, asked, err)
		}
	}
	for _, span := range spans.Ended() {
		if attributes := span.Attributes(); len(attributes) != 2 || attributes[0].Value.AsString() != "primary" {
			t.Errorf("the span has %v", attributes)
		}
	}
	for _, procedure := range []string{wigglev1connect.InstanceServiceCancelInstanceProcedure, "/x.Y/Unknown"} {
		if _, asked, err := count(procedure); err == nil || asked {
			t.Errorf("%s reads", procedure)
		}
	}
	_, _, err = reads.Do(t.Context(), shard, reads.Call{Procedure: wigglev1connect.InstanceServiceGetHistoryProcedure},
		func(ctx context.Context, r store.Reader) (store.InstanceView, error) {
			return r.Instance(ctx, machine.ID{1}, 0)
		})
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("what is not there: %v", err)
	}
}
