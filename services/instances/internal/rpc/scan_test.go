package rpc_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres/replica"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/rpc"
)

// readable is a process with one shard that is read from its primary.
type readable struct{ oneShard }

func (r readable) Reads(id int) (*reads.Shard, error) {
	if _, err := r.Serving(id); err != nil {
		return nil, err
	}
	none, err := replica.New(replica.Config{Shard: topology.Shard{ID: home}, Clock: clock.Real{}, Meter: noop.Meter{}})
	if err != nil {
		return nil, err
	}
	return reads.New(none, r.Store(), nil), nil
}

// TestScan: a scan goes over all instances by id, page by page, with or without contexts.
func TestScan(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		s.start(7, 10)
		api := rpc.New(readable{oneShard{s.shard}}, definition.DefaultLimits(), slog.New(slog.DiscardHandler))
		req := &internalv1.ScanInstancesRequest{Shard: home, Limit: 3}
		var ids []string
		for last := false; !last; {
			res, err := api.ScanInstances(s.Context(), req)
			if err != nil {
				s.Fatal(err)
			}
			for _, in := range res.GetInstances() {
				if in.GetId() <= req.GetAfterInstanceId() || len(in.GetContext().GetData()) != 10 || in.GetRevision() != 1 || len(in.GetTokens()) > 0 {
					s.Errorf("behind %q comes %v", req.GetAfterInstanceId(), in)
				}
				ids, req.AfterInstanceId = append(ids, in.GetId()), in.GetId()
			}
			last = res.GetLast()
		}
		if len(ids) != 7 {
			s.Errorf("scanned %v", ids)
		}
		res, err := api.ScanInstances(s.Context(), &internalv1.ScanInstancesRequest{Shard: home, HeadsOnly: true, Namespace: "default", Workflow: "two"})
		if err != nil || len(res.GetInstances()) != 7 || !res.GetLast() || res.GetInstances()[0].GetContext() != nil {
			s.Errorf("heads are %v, %v", res, err)
		}
		other := shardid.NewInstance(home+1, ulid.Make()).String()
		for _, after := range []string{"nonsense", "wfi_old", other, strings.Replace(ids[0], "wfi", "tok", 1)} {
			req := &internalv1.ScanInstancesRequest{Shard: home, AfterInstanceId: after}
			if _, err := api.ScanInstances(s.Context(), req); !errors.Is(err, faults.ErrInvalidArgument) {
				s.Errorf("behind %q: %v", after, err)
			}
		}
		if _, err := api.ScanInstances(s.Context(), &internalv1.ScanInstancesRequest{Shard: home + 1}); !errors.Is(err, faults.ErrShardUnknown) {
			s.Errorf("another shard: %v", err)
		}
	})
}

// TestGetInstances: each instance has an outcome of its own, in order; those whose contexts would make the answer too large
// are to be asked for again, and then come.
func TestGetInstances(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		const size = 2 << 20
		s.start(6, size)
		api := rpc.New(readable{oneShard{s.shard}}, definition.DefaultLimits(), slog.New(slog.DiscardHandler))
		scan, err := api.ScanInstances(s.Context(), &internalv1.ScanInstancesRequest{Shard: home, HeadsOnly: true})
		if err != nil {
			s.Fatal(err)
		}
		refs := []*wigglev1.InstanceRef{
			{InstanceId: shardid.NewInstance(home, ulid.Make()).String()},
			{InstanceId: "nonsense"},
			{InstanceId: "wfi_old"},
			{InstanceId: shardid.NewInstance(home+1, ulid.Make()).String()},
		}
		for _, in := range scan.GetInstances() {
			refs = append(refs, &wigglev1.InstanceRef{InstanceId: in.GetId(), MinRevision: 1})
		}
		res, err := api.GetInstances(s.Context(), &wigglev1.GetInstancesRequest{Instances: refs})
		if err != nil || len(res.GetOutcomes()) != len(refs) {
			s.Fatalf("got %v", err)
		}
		got := res.GetOutcomes()
		for i, want := range []faults.Code{
			faults.CodeNotFound, faults.CodeInvalidArgument, faults.CodeNotFound, faults.CodeUnavailable,
			faults.CodeOK, faults.CodeOK, faults.CodeOK, faults.CodeOK, faults.CodeUnavailable, faults.CodeUnavailable,
		} {
			if faults.Code(got[i].GetFault().GetCode()) != want {
				s.Errorf("outcome %d is %v, want %v", i, got[i].GetFault(), want)
			}
			if want == faults.CodeOK && (got[i].GetInstance().GetId() != refs[i].GetInstanceId() || len(got[i].GetInstance().GetContext().GetData()) != size) {
				s.Errorf("outcome %d is instance %s", i, got[i].GetInstance().GetId())
			}
		}
		res, err = api.GetInstances(s.Context(), &wigglev1.GetInstancesRequest{Instances: refs[8:]})
		if err != nil || res.GetOutcomes()[0].GetInstance() == nil || res.GetOutcomes()[1].GetInstance() == nil {
			s.Errorf("asked for again: %v", err)
		}
	})
}
