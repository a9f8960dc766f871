package principals

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
)

// maxReads is how often an answer is asked for anew that a change overtook.
const maxReads = 3

// flight is a question under way. Its results count once done is closed.
type flight struct {
	done       chan struct{}
	principal  *identity.Principal
	err        error
	unanswered bool // err is not the auth service's word on the credential
}

// fly returns the question that is under way for a key, and begins it if there is none.
func (c *Cache) fly(key *Key, credential Credential) (*flight, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flights[*key]; f != nil {
		return f, nil
	}
	if c.closed {
		return nil, faults.Unavailable(comeBack, "this router goes down; try again")
	}
	if len(c.flights) >= maxFlights {
		return nil, faults.Overloaded(comeBack, "too many credentials are being checked; try again")
	}
	f, at := &flight{done: make(chan struct{})}, *key
	c.flights[at] = f
	c.background.Go(func() {
		c.read(f, at, credential)
		// What came of it is stored by now, so that nobody asks again for it.
		c.mu.Lock()
		delete(c.flights, at)
		c.mu.Unlock()
		close(f.done)
	})
	return f, nil
}

// read asks and stores the answer.
func (c *Cache) read(f *flight, key Key, credential Credential) {
	for range maxReads {
		epoch, asked := c.seen.now(), time.Now()
		ctx, cancel := context.WithTimeout(c.ctx, askTimeout)
		res, err := c.source.Authenticate(ctx, credential.request())
		cancel()
		if err != nil {
			c.fail(f, key, err, epoch, asked)
			return
		}
		c.failing.Store(false)
		p, err := identity.New(res.GetPrincipal())
		if err != nil {
			f.err, f.unanswered = faults.Internal(err), true
			return
		}
		e := &entry{
			key: key, principal: p, revision: res.GetRevision(), asked: asked,
			renewAt: asked.Add(pause.Between(c.cfg.TTL*6/10, c.cfg.TTL*8/10)),
		}
		if ends := p.Message().GetExpiresAt(); ends != nil {
			e.ends = ends.AsTime()
		}
		if e.ended(time.Now()) {
			f.err = refusal()
			return
		}
		if c.keep(e, epoch) {
			f.principal = p
			return
		}
	}
	f.err, f.unanswered = faults.Unavailable(comeBack, "the caller's account or key is being changed; try again"), true
}

// keep stores an answer, unless a change that was seen since it was read may concern it. The read lock makes that hold: a
// change is noted under the write lock and drops what is stored afterwards. So either the answer is stored before, and
// dropped, or the change is noted before, and seen here.
func (c *Cache) keep(e *entry, epoch uint64) bool {
	c.seen.mu.RLock()
	defer c.seen.mu.RUnlock()
	if c.seen.epoch != epoch || c.seen.concern(e) {
		return false
	}
	c.held.put(e)
	return true
}

// fail takes an error for what it says: of the credential, or of the auth service.
func (c *Cache) fail(f *flight, key Key, err error, epoch uint64, asked time.Time) {
	switch faults.CodeOf(err) {
	case faults.CodeUnauthenticated, faults.CodePermissionDenied, faults.CodeNotFound, faults.CodeInvalidArgument:
		c.failing.Store(false)
		f.err = refusal()
		if e := c.held.get(&key); e != nil {
			c.held.drop(e)
		}
		c.seen.mu.RLock()
		defer c.seen.mu.RUnlock()
		if c.seen.epoch == epoch && !c.seen.changedSince(asked) {
			c.refused.put(&entry{key: key, asked: asked})
		}
	default:
		c.retryAt.Store(time.Now().Add(askPause).UnixNano())
		if !c.failing.Swap(true) && c.ctx.Err() == nil {
			c.logger.Warn("the auth service does not tell whose a credential is; who is known goes on for the grace",
				slog.Duration("grace", c.cfg.Grace), slog.Any("error", err))
		}
		f.err, f.unanswered = faults.Unavailable(comeBack, "the auth service does not answer, and this caller is not known yet; try again").
			WithCause(err), true
	}
}

func result(name string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("result", name)))
}
