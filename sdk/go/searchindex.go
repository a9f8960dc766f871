package wiggle

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"connectrpc.com/connect"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// IndexStatus says how far the search index is.
type IndexStatus struct {
	// Documents is how many instances are in the index.
	Documents int64
	// Pending is how many events wait to be indexed; -1 if that is not known.
	Pending int64
	// LastDelay is how long after its event the last document was in the index.
	// DelayP99 is what 99 of 100 do not exceed, of the last minutes. 0 if there
	// were none.
	LastDelay, DelayP99 time.Duration
}

// IndexStatus tells how far the search index is. It may return both that and a
// [*PartialError] that names search shards which did not answer.
func (c *Client) IndexStatus(ctx context.Context) (IndexStatus, error) {
	res, err := call(ctx, c, "get index status", callTimeout, c.search.GetIndexStatus, &wigglev1.GetIndexStatusRequest{})
	if err != nil {
		return IndexStatus{}, err
	}
	missing := missingShards{}
	missing.add("get index status", res.GetShards())
	return IndexStatus{
		Documents: res.GetDocuments(), Pending: res.GetPending(),
		LastDelay: res.GetLastDelay().AsDuration(), DelayP99: res.GetDelayP99().AsDuration(),
	}, missing.err()
}

// ReindexOptions say what to index again.
type ReindexOptions struct {
	// AllNamespaces takes the instances of all namespaces, not of the client's
	// alone.
	AllNamespaces bool
	// Workflow. Empty means all.
	Workflow string
	// Rate is how many instances are read in a second at most. 0 means 1000.
	Rate int
	// Resume goes on where another call was: its last [ReindexProgress.Resume].
	Resume string
}

// ReindexProgress says how far a reindex is.
type ReindexProgress struct {
	// Read instances, and documents Written because they were missing or older.
	Read, Written int64
	// Total is about how many instances there are.
	Total int64
	// Resume goes on from here. Empty when it is done.
	Resume string
	// Done when all were read.
	Done bool
}

// Reindex reads instances again and brings the search index up to them, telling how
// far it is after each part. When the server goes away it goes on with another, as
// often as the client repeats calls. An error ends it; then the last progress says
// where to go on. Stopping the iteration stops the reindex.
func (c *Client) Reindex(ctx context.Context, opts ReindexOptions) iter.Seq2[ReindexProgress, error] {
	return func(yield func(ReindexProgress, error) bool) {
		req := &wigglev1.ReindexRequest{
			Namespace: c.namespaceOr(opts.AllNamespaces), Workflow: opts.Workflow, Rate: toInt32(opts.Rate), Resume: opts.Resume,
		}
		for attempt := 1; ; attempt++ {
			read, err := readStream(ctx, c.search.Reindex, req, func(res *wigglev1.ReindexResponse) bool {
				if res.GetResume() != "" && res.GetResume() != req.GetResume() {
					req.Resume, attempt = res.GetResume(), 1
				}
				return yield(ReindexProgress{
					Read: res.GetRead(), Written: res.GetWritten(), Total: res.GetTotal(), Resume: res.GetResume(), Done: res.GetDone(),
				}, nil)
			})
			if !read {
				return // nobody listens any more
			}
			if err == nil {
				return
			}
			werr := toError("reindex", err)
			pause, again := c.retries.next(ctx, attempt, werr)
			if !again || sleep(ctx, pause) != nil {
				yield(ReindexProgress{}, werr)
				return
			}
			c.logger.LogAttrs(ctx, slog.LevelDebug, "wiggle: a reindex goes on", slog.Any("error", werr))
		}
	}
}

// VerifyOptions say what to compare.
type VerifyOptions struct {
	// AllNamespaces takes the instances of all namespaces, not of the client's
	// alone.
	AllNamespaces bool
	// Workflow. Empty means all.
	Workflow string
	// Repair mends what differs.
	Repair bool
}

// VerifyProgress says how far a comparison is, and what it has found.
type VerifyProgress struct {
	// Compared instances, of about Total.
	Compared, Total int64
	// Missing are instances that are not in the index, Stale documents that are
	// older than their instance, Orphaned documents without one. Repaired is how
	// many of these were mended.
	Missing, Stale, Orphaned, Repaired int64
	// Examples are some of the instances that differ.
	Examples []string
	// Done when all were compared.
	Done bool
}

// VerifyIndex compares the search index with the instances, telling how far it is
// after each part. An error ends it.
func (c *Client) VerifyIndex(ctx context.Context, opts VerifyOptions) iter.Seq2[VerifyProgress, error] {
	return func(yield func(VerifyProgress, error) bool) {
		req := &wigglev1.VerifyRequest{
			Namespace: c.namespaceOr(opts.AllNamespaces), Workflow: opts.Workflow, Repair: opts.Repair,
		}
		read, err := readStream(ctx, c.search.Verify, req, func(res *wigglev1.VerifyResponse) bool {
			return yield(VerifyProgress{
				Compared: res.GetCompared(), Total: res.GetTotal(), Missing: res.GetMissing(), Stale: res.GetStale(),
				Orphaned: res.GetOrphaned(), Repaired: res.GetRepaired(), Examples: res.GetExamples(), Done: res.GetDone(),
			}, nil)
		})
		if read && err != nil {
			yield(VerifyProgress{}, toError("verify the index", err))
		}
	}
}

// namespaceOr is the client's namespace, spelled out, or empty for all.
func (c *Client) namespaceOr(all bool) string {
	switch {
	case all:
		return ""
	case c.namespace == "":
		return "default"
	default:
		return c.namespace
	}
}

// readStream reads a stream to its end; read is false if take did not want more.
func readStream[Req, Res any](
	ctx context.Context, open func(context.Context, *Req) (*connect.ServerStreamForClient[Res], error), req *Req, take func(*Res) bool,
) (read bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, err := open(ctx, req)
	if err != nil {
		return true, err
	}
	defer func() { _ = from.Close() }()
	for from.Receive() {
		if !take(from.Msg()) {
			return false, nil
		}
	}
	return true, from.Err()
}
