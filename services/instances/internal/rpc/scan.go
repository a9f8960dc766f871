package rpc

import (
	"context"
	"strconv"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/postgres/replica"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

const (
	defaultScan = 500
	maxScan     = 1000
	// contextBytes bounds the contexts of one shard in an answer. A router puts those of several shards together, within
	// what a client reads.
	contextBytes = 8 << 20
)

// wanted are the instances of one shard in a call, at which revision at least, and where their outcomes go.
type wanted struct {
	ids       []machine.ID
	revisions []int32
	indexes   []int
}

// GetInstances reads instances by their ids. Each has an outcome of its own; those that would make the answer too large are
// to be asked for again.
func (s *Server) GetInstances(ctx context.Context, req *wigglev1.GetInstancesRequest) (*wigglev1.GetInstancesResponse, error) {
	refs := req.GetInstances()
	outcomes := make([]*wigglev1.InstanceOutcome, len(refs))
	fail := func(i int, err error) {
		outcomes[i] = &wigglev1.InstanceOutcome{Outcome: &wigglev1.InstanceOutcome_Fault{Fault: s.item(ctx, err)}}
	}
	groups := map[int]*wanted{}
	for i, ref := range refs {
		shard, id, err := s.instance(ref.GetInstanceId())
		if err != nil {
			fail(i, err)
			continue
		}
		w := groups[shard.ID()]
		if w == nil {
			w = &wanted{}
			groups[shard.ID()] = w
		}
		w.ids, w.revisions, w.indexes = append(w.ids, id), append(w.revisions, ref.GetMinRevision()), append(w.indexes, i)
	}
	c := reads.Call{Procedure: wigglev1connect.InstanceServiceGetInstancesProcedure}
	for shard, w := range groups {
		found, err := s.instances(ctx, shard, c, w)
		for n, i := range w.indexes {
			in, read := found[w.ids[n]]
			switch {
			case read && hidden(ctx, in):
				fail(i, identity.Denied(ctx, actionRead, "instance", refs[i].GetInstanceId()))
			case in != nil: // also if the primary does not answer for others
				outcomes[i] = &wigglev1.InstanceOutcome{
					Outcome: &wigglev1.InstanceOutcome_Instance{Instance: instanceProto(shard, in)},
				}
			case err != nil:
				fail(i, fault(shard, err))
			case !read:
				fail(i, faults.Unavailable(0, "the answer is full; ask for instance %q again", refs[i].GetInstanceId()))
			default:
				fail(i, faults.NotFound("instance", refs[i].GetInstanceId()))
			}
		}
	}
	return &wigglev1.GetInstancesResponse{Outcomes: outcomes}, nil
}

// instances reads instances of one shard, from a replica where one will do. What that does not have, or has at an older
// revision than is wanted, is read from the primary. One that does not exist is nil; one that does not fit is left out.
func (s *Server) instances(ctx context.Context, shard int, c reads.Call, w *wanted) (map[machine.ID]*machine.Instance, error) {
	found := make(map[machine.ID]*machine.Instance, len(w.ids))
	ask := func(ids []machine.ID) (replica.Source, error) {
		list, from, err := read(ctx, s, shard, c, func(ctx context.Context, r store.Reader) ([]*machine.Instance, error) {
			return r.Instances(ctx, ids, contextBytes)
		})
		for n, in := range list {
			found[ids[n]] = in
		}
		return from, err
	}
	from, err := ask(w.ids)
	if err != nil || from.Primary() {
		return found, err
	}
	var older []machine.ID
	for n, id := range w.ids {
		if in, read := found[id]; read && (in == nil || in.Position < w.revisions[n]) {
			older = append(older, id)
			delete(found, id)
		}
	}
	if len(older) > 0 {
		c.Primary = true
		_, err = ask(older)
	}
	return found, err
}

// ScanInstances reads a stretch of all instances of a shard, for services alone: a caller who is limited has no use of it.
func (s *Server) ScanInstances(ctx context.Context, req *internalv1.ScanInstancesRequest) (*internalv1.ScanInstancesResponse, error) {
	if identity.FromContext(ctx) != nil {
		return nil, identity.Denied(ctx, actionRead, "shard", strconv.Itoa(int(req.GetShard())))
	}
	shard, err := s.shards.Serving(int(req.GetShard()))
	if err != nil {
		return nil, err
	}
	after, err := scanAfter(shard.ID(), req.GetAfterInstanceId())
	if err != nil {
		return nil, err
	}
	more := false
	c := reads.Call{Procedure: wiggleinternalv1connect.ScanServiceScanInstancesProcedure}
	list, _, err := read(ctx, s, shard.ID(), c, func(ctx context.Context, r store.Reader) (list []*machine.Instance, err error) {
		list, more, err = r.Scan(ctx, store.Scan{
			After: after, Namespace: req.GetNamespace(), Workflow: req.GetWorkflow(), HeadsOnly: req.GetHeadsOnly(),
			Limit: page(req.GetLimit(), defaultScan, maxScan), MaxBytes: contextBytes,
		})
		return list, err
	})
	if err != nil {
		return nil, fault(shard.ID(), err)
	}
	res := &internalv1.ScanInstancesResponse{Last: !more}
	for _, in := range list {
		res.Instances = append(res.Instances, instanceProto(shard.ID(), in))
	}
	return res, nil
}

// scanAfter reads where a scan goes on. The ids of a shard are in the order of their ulids.
func scanAfter(shard int, text string) (machine.ID, error) {
	if text == "" {
		return machine.ID{}, nil
	}
	id, err := shardid.ParseInstance(text)
	if err != nil {
		return machine.ID{}, faults.InvalidArgument("%v", err)
	}
	u, ok := id.ULID()
	if !ok || id.Shard() != shard {
		return machine.ID{}, faults.InvalidArgument("instance %s is none of shard %d's", text, shard)
	}
	return machine.ID(u), nil
}
