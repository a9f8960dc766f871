package wiggle

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Filter narrows lists and counts. Its zero value is every instance of the client's
// namespace.
type Filter struct {
	// Workflow. Empty means all.
	Workflow string
	// States. Empty means all.
	States []State
	// CreatedFrom, and CreatedBefore: started at or after the one, before the
	// other. Zero means no bound.
	CreatedFrom, CreatedBefore time.Time
}

// ListOption sets something of a list or count.
type ListOption func(*listConfig)

type listConfig struct {
	missing  wigglev1.MissingShards
	pageSize int32
}

// AllowPartial takes what the other shards know when one does not answer. The call
// then returns it together with a [*PartialError] that names the shards; without
// this option it fails with [ErrShardsMissing] and returns nothing.
func AllowPartial() ListOption {
	return func(c *listConfig) { c.missing = wigglev1.MissingShards_MISSING_SHARDS_PARTIAL }
}

// PageSize is how many instances one call of a list reads, 1 to 1000. Without it:
// 100.
func PageSize(n int) ListOption {
	return func(c *listConfig) { c.pageSize = toInt32(n) }
}

// ShardError tells why a shard is missing.
type ShardError struct {
	// Shard that did not answer.
	Shard int
	// Err says why.
	Err error
}

// PartialError comes with a result that lacks what some shards hold.
type PartialError struct {
	// Missing shards, by number. Never empty.
	Missing []ShardError
}

// Error names the shards.
func (e *PartialError) Error() string {
	s := "wiggle: the result is partial, these shards did not answer:"
	for _, m := range e.Missing {
		s += fmt.Sprintf("\n\tshard %d: %v", m.Shard, m.Err)
	}
	return s
}

// Is makes errors.Is(err, ErrShardsMissing) hold.
func (e *PartialError) Is(target error) bool { return target == ErrShardsMissing }

// missingShards gathers which shards did not answer, over the pages of a list.
type missingShards map[int]error

func (m missingShards) add(op string, outcomes []*wigglev1.ShardOutcome) {
	for _, o := range outcomes {
		if f := o.GetFault(); f != nil {
			m[int(o.GetShard())] = faultError(op, f)
		}
	}
}

func (m missingShards) err() error {
	if len(m) == 0 {
		return nil
	}
	e := &PartialError{}
	for shard, err := range m {
		e.Missing = append(e.Missing, ShardError{Shard: shard, Err: err})
	}
	slices.SortFunc(e.Missing, func(a, b ShardError) int { return cmp.Compare(a.Shard, b.Shard) })
	return e
}

// List iterates over the instances that match, newest first, reading page by page.
// No instance comes twice or is skipped while others are started. An error ends it;
// with [AllowPartial] a [*PartialError] comes last, after everything that is known.
func (c *Client) List(ctx context.Context, filter Filter, opts ...ListOption) iter.Seq2[*Instance, error] {
	cfg := listConfigOf(opts)
	return func(yield func(*Instance, error) bool) {
		req := &wigglev1.ListInstancesRequest{Filter: c.filter(filter), PageSize: cfg.pageSize, MissingShards: cfg.missing}
		missing := missingShards{}
		for {
			res, err := call(ctx, c, "list instances", callTimeout, c.instances.ListInstances, req)
			if err != nil {
				yield(nil, err)
				return
			}
			missing.add("list instances", res.GetShards())
			for _, i := range res.GetInstances() {
				if !yield(instanceOf(i), nil) {
					return
				}
			}
			if res.GetNextPageToken() == "" {
				break
			}
			req.PageToken = res.GetNextPageToken()
		}
		if err := missing.err(); err != nil {
			yield(nil, err)
		}
	}
}

// Counts says how many instances match.
type Counts struct {
	// Total in all.
	Total int64
	// ByState has the states that occur.
	ByState map[State]int64
	// ByShard has the shards that answered.
	ByShard map[int]int64
}

// Count counts the instances that match. With [AllowPartial] it may return both
// counts and a [*PartialError].
func (c *Client) Count(ctx context.Context, filter Filter, opts ...ListOption) (Counts, error) {
	req := &wigglev1.CountInstancesRequest{Filter: c.filter(filter), MissingShards: listConfigOf(opts).missing}
	res, err := call(ctx, c, "count instances", callTimeout, c.instances.CountInstances, req)
	if err != nil {
		return Counts{}, err
	}
	out := Counts{Total: res.GetTotal(), ByState: map[State]int64{}, ByShard: map[int]int64{}}
	for _, s := range res.GetByState() {
		out.ByState[State(s.GetState())] += s.GetCount()
	}
	for _, s := range res.GetShards() {
		if s.GetFault() == nil {
			out.ByShard[int(s.GetShard())] = s.GetCount()
		}
	}
	missing := missingShards{}
	missing.add("count instances", res.GetShards())
	return out, missing.err()
}

func listConfigOf(opts []ListOption) listConfig {
	cfg := listConfig{missing: wigglev1.MissingShards_MISSING_SHARDS_FAIL}
	for _, o := range opts {
		o(&cfg)
	}
	return cfg
}

func (c *Client) filter(f Filter) *wigglev1.InstanceFilter {
	out := &wigglev1.InstanceFilter{Namespace: c.namespace, Workflow: f.Workflow}
	for _, s := range f.States {
		out.States = append(out.States, wigglev1.InstanceState(s))
	}
	if !f.CreatedFrom.IsZero() {
		out.CreatedFrom = timestamppb.New(f.CreatedFrom)
	}
	if !f.CreatedBefore.IsZero() {
		out.CreatedBefore = timestamppb.New(f.CreatedBefore)
	}
	return out
}
