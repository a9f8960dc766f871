// Package routers calls the routers, of which any will do. Calls go to one for as long as it answers, and then to the next.
package routers

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// tryTimeout bounds a call to one router, so that one that hangs leaves time for the next.
const tryTimeout = 5 * time.Second

// Routers are clients of the routers. It is safe for concurrent use.
type Routers struct {
	clients   []wigglev1connect.InstanceServiceClient
	preferred atomic.Uint32
}

// New makes Routers of a client for each router, at least one. Clients return *faults.Error.
func New(clients ...wigglev1connect.InstanceServiceClient) *Routers {
	return &Routers{clients: clients}
}

// StartInstances starts instances. Each start has a ulid, so that it may be sent again to another router.
func (r *Routers) StartInstances(
	ctx context.Context, req *wigglev1.StartInstancesRequest,
) (*wigglev1.StartInstancesResponse, error) {
	return do(ctx, r, req, wigglev1connect.InstanceServiceClient.StartInstances)
}

// GetInstance reads an instance.
func (r *Routers) GetInstance(ctx context.Context, req *wigglev1.GetInstanceRequest) (*wigglev1.GetInstanceResponse, error) {
	return do(ctx, r, req, wigglev1connect.InstanceServiceClient.GetInstance)
}

// CancelInstance cancels an instance.
func (r *Routers) CancelInstance(
	ctx context.Context, req *wigglev1.CancelInstanceRequest,
) (*wigglev1.CancelInstanceResponse, error) {
	return do(ctx, r, req, wigglev1connect.InstanceServiceClient.CancelInstance)
}

// do makes a call that may be repeated, on the next router if one does not answer.
func do[Req, Res any](
	ctx context.Context, r *Routers, req *Req,
	call func(c wigglev1connect.InstanceServiceClient, ctx context.Context, req *Req) (*Res, error),
) (*Res, error) {
	var last error
	first := r.preferred.Load()
	for i := range r.clients {
		at := (int(first) + i) % len(r.clients)
		try, cancel := context.WithTimeout(ctx, tryTimeout)
		res, err := call(r.clients[at], try, req)
		cancel()
		if err == nil || !away(err) {
			if i > 0 {
				r.preferred.CompareAndSwap(first, uint32(at)) //nolint:gosec // an index
			}
			return res, err
		}
		last = err
		if ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// away tells whether another router may do better: not if this one says that a shard is.
func away(err error) bool {
	if errors.Is(err, faults.ErrShardUnavailable) || errors.Is(err, faults.ErrShardUnknown) || errors.Is(err, faults.ErrOutcomeUnknown) {
		return false
	}
	code := faults.CodeOf(err)
	return code == faults.CodeUnavailable || code == faults.CodeDeadlineExceeded
}
