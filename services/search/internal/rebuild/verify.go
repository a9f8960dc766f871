package rebuild

import (
	"context"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/index"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
)

// maxExamples bounds the instances that a comparison names.
const maxExamples = 20

// comparison is a comparison under way.
type comparison struct {
	*Rebuilder

	req *wigglev1.VerifyRequest
	res *wigglev1.VerifyResponse
}

// Verify compares the index with the instances, and with repair mends what differs. send is told how far it is.
func (r *Rebuilder) Verify(ctx context.Context, req *wigglev1.VerifyRequest, send func(*wigglev1.VerifyResponse) error) error {
	leave, err := r.enter()
	if err != nil {
		return err
	}
	defer leave()
	c := &comparison{Rebuilder: r, req: req, res: &wigglev1.VerifyResponse{}}
	total := r.total(ctx, req.GetNamespace(), req.GetWorkflow())
	tell := func() error {
		c.res.Total = max(total, c.res.GetCompared())
		return send(c.res)
	}
	if err := tell(); err != nil {
		return err
	}
	for _, shard := range r.shards {
		at := position{shard: shard}
		for last := false; !last; {
			if last, err = c.part(ctx, &at); err != nil {
				return err
			}
			if err := tell(); err != nil {
				return err
			}
			if err := leaving(ctx); err != nil {
				return err
			}
		}
	}
	c.res.Done = true
	return tell()
}

// copyOf is a document and the search shard that it was found on.
type copyOf struct {
	searchstore.Head

	on *index.Shard
}

// part compares one stretch of a shard's instances.
func (c *comparison) part(ctx context.Context, at *position) (last bool, err error) {
	res, err := c.scan(ctx, &internalv1.ScanInstancesRequest{
		Shard: int32(at.shard), AfterInstanceId: at.after, Limit: headsSize, HeadsOnly: true, //nolint:gosec // a shard fits
		Namespace: c.req.GetNamespace(), Workflow: c.req.GetWorkflow(),
	})
	if err != nil {
		return false, err
	}
	heads := make(map[document.Key]*wigglev1.Instance, len(res.GetInstances()))
	st := searchstore.Stretch{
		Shard: at.shard, Open: res.GetLast(), Namespace: c.req.GetNamespace(), Workflow: c.req.GetWorkflow(),
	}
	if at.after != "" {
		key, err := document.ParseKey(at.after)
		if err != nil {
			return false, faults.Internal(err)
		}
		st.After = key.ULID
	}
	for _, in := range res.GetInstances() {
		key, err := document.ParseKey(in.GetId())
		if err != nil {
			return false, faults.Internal(err)
		}
		heads[key], st.UpTo, at.after = in, key.ULID, in.GetId()
	}
	copies, err := c.copies(ctx, st)
	if err != nil {
		return false, err
	}
	c.res.Compared += int64(len(heads))
	if err := c.instances(ctx, heads, copies); err != nil {
		return false, err
	}
	return res.GetLast(), c.strays(ctx, heads, copies)
}

// copies reads the documents of a stretch from all search shards.
func (c *comparison) copies(ctx context.Context, st searchstore.Stretch) ([]copyOf, error) {
	var all []copyOf
	for _, shard := range c.index.Shards {
		part := st
		for more := true; more; {
			var list []searchstore.Head
			err := onShard(ctx, shard, func() (err error) {
				list, err = shard.Store.Heads(ctx, part, headsSize)
				return err
			})
			if err != nil {
				return nil, err
			}
			for _, h := range list {
				all = append(all, copyOf{h, shard})
			}
			if more = len(list) == headsSize; more {
				part.After = list[len(list)-1].ULID
			}
		}
	}
	return all, nil
}

// instances finds those whose document is missing or older, and mends it.
func (c *comparison) instances(ctx context.Context, heads map[document.Key]*wigglev1.Instance, copies []copyOf) error {
	revisions := make(map[document.Key]int32, len(copies))
	for _, d := range copies {
		if c.index.Of(d.Key) == d.on {
			revisions[d.Key] = d.Revision
		}
	}
	settled := time.Now().Add(-c.Settled)
	var wrong []document.Key
	for key, in := range heads {
		revision, there := revisions[key]
		if there && revision >= in.GetRevision() {
			continue
		}
		changed := in.GetCreatedAt().AsTime()
		if in.GetEndedAt() != nil {
			changed = in.GetEndedAt().AsTime()
		}
		if changed.After(settled) {
			continue // the indexer is on its way
		}
		if there {
			c.res.Stale++
		} else {
			c.res.Missing++
		}
		c.example(key)
		wrong = append(wrong, key)
	}
	if !c.req.GetRepair() || len(wrong) == 0 {
		return nil
	}
	found, err := c.get(ctx, wrong)
	if err != nil {
		return err
	}
	var docs []*document.Document
	for key, o := range found {
		if o.GetInstance() == nil { // gone meanwhile
			continue
		}
		d, err := document.From(o.GetInstance())
		if err != nil {
			c.log.ErrorContext(ctx, "an instance cannot be indexed", "instance", key.String(), "error", err)
			continue
		}
		docs = append(docs, d)
	}
	written, err := c.write(ctx, docs)
	c.res.Repaired += int64(written)
	return err
}

// strays finds documents without an instance, and those on a shard where they do not belong, and deletes them.
func (c *comparison) strays(ctx context.Context, heads map[document.Key]*wigglev1.Instance, copies []copyOf) error {
	gone := map[*index.Shard][]searchstore.Head{}
	var doubted []document.Key
	var at []copyOf
	for _, d := range copies {
		switch {
		case c.index.Of(d.Key) != d.on:
			gone[d.on] = append(gone[d.on], d.Head)
		case heads[d.Key] == nil:
			doubted, at = append(doubted, d.Key), append(at, d)
		}
	}
	found, err := c.get(ctx, doubted)
	if err != nil {
		return err
	}
	for _, d := range at {
		if found[d.Key].GetInstance() == nil {
			gone[d.on] = append(gone[d.on], d.Head)
		}
	}
	for shard, list := range gone {
		c.res.Orphaned += int64(len(list))
		for _, h := range list {
			c.example(h.Key)
		}
		if !c.req.GetRepair() {
			continue
		}
		err := onShard(ctx, shard, func() error {
			n, err := shard.Store.Delete(ctx, list)
			c.res.Repaired += int64(n)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) example(key document.Key) {
	if len(c.res.GetExamples()) < maxExamples {
		c.res.Examples = append(c.res.Examples, key.String())
	}
}
