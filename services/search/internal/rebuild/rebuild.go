package rebuild

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/index"
)

const (
	// pageSize is how many instances are read at once with their contexts, headsSize without.
	pageSize  = 250
	headsSize = 1000
	// defaultRate is in instances a second.
	defaultRate = 1000
	// maxTries bounds how often a part is tried before the call ends; it can be taken up again.
	maxTries   = 8
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
	// maxNamespaces bounds how many namespaces are counted for the total.
	maxNamespaces = 100
)

// Source reads instances.
type Source interface {
	Get(ctx context.Context, refs []*wigglev1.InstanceRef) ([]*wigglev1.InstanceOutcome, error)
	Scan(ctx context.Context, req *internalv1.ScanInstancesRequest) (*internalv1.ScanInstancesResponse, error)
	Count(ctx context.Context, namespace, workflow string) (int64, error)
}

// Rebuilder rebuilds and compares. One call of either kind runs at a time.
type Rebuilder struct {
	index  *index.Index
	source Source
	shards []int // of instances, in order
	log    *slog.Logger
	// Settled is how long ago an instance was started or ended that the index must have. It is set before the first call.
	Settled time.Duration

	running sync.Mutex
}

// DefaultSettled is some times what the indexer takes when all is well.
const DefaultSettled = 10 * time.Second

// New makes a rebuilder over the instances of these shards.
func New(x *index.Index, source Source, instanceShards []int, log *slog.Logger) *Rebuilder {
	return &Rebuilder{index: x, source: source, shards: instanceShards, log: log, Settled: DefaultSettled}
}

// enter refuses a second call.
func (r *Rebuilder) enter() (leave func(), err error) {
	if !r.running.TryLock() {
		return nil, faults.FailedPrecondition("a reindex or verify is running in this process already; wait for its end, or stop it")
	}
	return r.running.Unlock, nil
}

// total is about how many instances there are: those of the namespace, or of the namespaces that the index knows. It is for
// people; what cannot be counted is left out.
func (r *Rebuilder) total(ctx context.Context, namespace, workflow string) int64 {
	names := map[string]bool{namespace: true}
	if namespace == "" {
		names = map[string]bool{"default": true}
		for _, s := range r.index.Shards {
			if !s.Ready() {
				continue
			}
			list, err := s.Store.Namespaces(ctx, maxNamespaces)
			if err != nil {
				r.log.DebugContext(ctx, "the namespaces of a search shard are not known", slog.Any("error", err))
			}
			for _, name := range list {
				names[name] = true
			}
		}
	}
	total := int64(0)
	for name := range names {
		n, err := r.source.Count(ctx, name, workflow)
		if err != nil {
			r.log.DebugContext(ctx, "the instances cannot be counted", slog.Any("error", err))
		}
		total += n
	}
	return total
}

// scan reads a part of a shard's instances, trying again for a while.
func (r *Rebuilder) scan(ctx context.Context, req *internalv1.ScanInstancesRequest) (res *internalv1.ScanInstancesResponse, err error) {
	err = persist(ctx, func() error {
		res, err = r.source.Scan(ctx, req)
		return err
	})
	return res, err
}

// get reads instances, trying again for a while. The outcomes are instances, or NOT_FOUND.
func (r *Rebuilder) get(ctx context.Context, keys []document.Key) (map[document.Key]*wigglev1.InstanceOutcome, error) {
	found := make(map[document.Key]*wigglev1.InstanceOutcome, len(keys))
	for left := keys; len(left) > 0; {
		n := min(len(left), pageSize)
		part := left[:n]
		left = left[n:]
		err := persist(ctx, func() error { return r.getPart(ctx, part, found) })
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (r *Rebuilder) getPart(ctx context.Context, part []document.Key, found map[document.Key]*wigglev1.InstanceOutcome) error {
	var refs []*wigglev1.InstanceRef
	var asked []document.Key
	for _, key := range part {
		if found[key] == nil {
			refs, asked = append(refs, &wigglev1.InstanceRef{InstanceId: key.String()}), append(asked, key)
		}
	}
	if len(refs) == 0 {
		return nil
	}
	outcomes, err := r.source.Get(ctx, refs)
	if err != nil {
		return err
	}
	for i, o := range outcomes {
		if f := o.GetFault(); f != nil && f.GetCode() != int32(faults.CodeNotFound) {
			err = faults.FromProto(f) // and go on with those that there are
			continue
		}
		found[asked[i]] = o
	}
	return err
}

// write brings documents to their shards and returns how many were written. One that its database refuses is logged and left
// out.
func (r *Rebuilder) write(ctx context.Context, docs []*document.Document) (written int, err error) {
	for shard, part := range index.Split(r.index, docs, func(d *document.Document) document.Key { return d.Key }) {
		n, err := r.writeTo(ctx, shard, part)
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func (r *Rebuilder) writeTo(ctx context.Context, shard *index.Shard, docs []*document.Document) (written int, err error) {
	err = onShard(ctx, shard, func() error {
		written, err = shard.Store.Upsert(ctx, docs)
		return err
	})
	switch {
	case err == nil || postgres.Classify(err) != postgres.Permanent || faultOf(err) != nil:
		return written, err
	case len(docs) == 1:
		r.log.ErrorContext(ctx, "an instance cannot be indexed and is left out of the index",
			slog.String("instance", docs[0].Key.String()), slog.String("error", postgres.Detail(err)))
		return 0, nil
	}
	written = 0
	for i := range docs {
		n, err := r.writeTo(ctx, shard, docs[i:i+1])
		if written += n; err != nil {
			return written, err
		}
	}
	return written, nil
}

// onShard does something on a search shard, trying again for a while if the shard does not answer.
func onShard(ctx context.Context, shard *index.Shard, do func() error) error {
	err := persist(ctx, func() error {
		if !shard.Ready() {
			return faults.ShardUnavailable(shard.ID, lastPause)
		}
		return do()
	})
	if err != nil && faultOf(err) == nil && postgres.Classify(err) != postgres.Permanent {
		return faults.ShardUnavailable(shard.ID, lastPause).WithCause(err)
	}
	return err
}

func faultOf(err error) *faults.Error {
	e, _ := errors.AsType[*faults.Error](err)
	return e
}

// persist tries again what may succeed then.
func persist(ctx context.Context, try func() error) error {
	next := firstPause
	for n := 1; ; n++ {
		err := try()
		if err == nil || n == maxTries || !passing(err) {
			return err
		}
		if err := wait(ctx, next/2+rand.N(next)); err != nil { //nolint:gosec // jitter
			return err
		}
		next = min(2*next, lastPause)
	}
}

// passing tells whether an error is of what comes back by itself.
func passing(err error) bool {
	if f := faultOf(err); f != nil {
		return f.Code() == faults.CodeUnavailable || f.Code() == faults.CodeResourceExhausted || f.Code() == faults.CodeDeadlineExceeded
	}
	switch postgres.Classify(err) {
	case postgres.Unavailable, postgres.ReadOnly, postgres.NotApplied, postgres.Unknown, postgres.Interrupted:
		return true
	default:
		return false
	}
}

// wait waits, until the call or the process ends.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return leaving(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-draining(ctx):
		return leaving(ctx)
	case <-timer.C:
		return nil
	}
}

// leaving is the error of a call whose process goes down.
func leaving(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-draining(ctx):
		return faults.Unavailable(time.Second, "the search process is going down; take the call up again where it stopped")
	default:
		return nil
	}
}

// position is where a rebuild or comparison is.
type position struct {
	shard int
	after string // id of the last instance
}

// shardsFrom are the shards that are left, beginning with the position's.
func (r *Rebuilder) shardsFrom(p position) []int {
	for i, id := range r.shards {
		if id >= p.shard {
			return r.shards[i:]
		}
	}
	return nil
}

func (p position) String() string { return fmt.Sprintf("shard %d after %q", p.shard, p.after) }
