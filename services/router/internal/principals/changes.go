package principals

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
)

const (
	// pollLow and pollHigh bound the pause between questions what changed; pollTimeout bounds one, over all auth processes.
	// Together they leave room for asking about a stream's caller again within the second (AUT-5).
	pollLow     = 400 * time.Millisecond
	pollHigh    = 500 * time.Millisecond
	pollTimeout = 450 * time.Millisecond
	// maxSeen bounds the changes that are remembered for answers that come late.
	maxSeen = 1024
)

// Change is what is to be forgotten.
type Change struct {
	// Revision is that up to which it tells.
	Revision int64

	all         bool
	credentials map[string]struct{}
	accounts    map[string]struct{} // in lower case
	at          time.Time
}

// NewChange reads a change.
func NewChange(res *wiggleinternalv1.ListChangesResponse) Change {
	ch := Change{
		Revision: res.GetRevision(), all: res.GetAll(), at: time.Now(),
		credentials: make(map[string]struct{}, len(res.GetCredentialIds())),
		accounts:    make(map[string]struct{}, len(res.GetAccounts())),
	}
	for _, id := range res.GetCredentialIds() {
		ch.credentials[id] = struct{}{}
	}
	for _, name := range res.GetAccounts() {
		ch.accounts[strings.ToLower(name)] = struct{}{}
	}
	return ch
}

// Concerns tells whether the principal is to be asked for anew.
func (ch *Change) Concerns(p *identity.Principal) bool {
	if ch.all {
		return true
	}
	if _, ok := ch.credentials[p.Message().GetCredentialId()]; ok {
		return true
	}
	_, ok := ch.accounts[strings.ToLower(p.Message().GetName())]
	return ok
}

func (ch *Change) empty() bool { return !ch.all && len(ch.credentials) == 0 && len(ch.accounts) == 0 }

// seen is the changes of late, for answers that were read before them and come after them.
type seen struct {
	mu    sync.RWMutex
	epoch uint64 // rises when revisions begin anew
	log   []Change
	floor int64 // revision up to which changes are not remembered
}

func (s *seen) now() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.epoch
}

// concern tells whether a change behind the revision of an entry may concern it. The mutex is held.
func (s *seen) concern(e *entry) bool {
	if e.revision < s.floor {
		return true
	}
	for i := len(s.log) - 1; i >= 0; i-- {
		if ch := &s.log[i]; ch.Revision > e.revision && ch.Concerns(e.principal) {
			return true
		}
	}
	return false
}

// changedSince tells whether anything changed since a time. The mutex is held.
func (s *seen) changedSince(t time.Time) bool {
	return len(s.log) > 0 && !s.log[len(s.log)-1].at.Before(t)
}

func (s *seen) add(ch Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.log) == maxSeen {
		s.floor = max(s.floor, s.log[0].Revision)
		s.log = append(s.log[:0], s.log[1:]...)
	}
	s.log = append(s.log, ch)
}

// restart forgets all changes, as revisions begin anew.
func (s *seen) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	s.log, s.floor = nil, 0
}

// Apply forgets what a change concerns, but for what was read at its revision or later. It may be told of one twice, or not in
// order.
func (c *Cache) Apply(res *wiggleinternalv1.ListChangesResponse) {
	ch := NewChange(res)
	if ch.empty() {
		return
	}
	c.seen.add(ch)
	c.held.dropIf(func(e *entry) bool { return e.revision < ch.Revision && ch.Concerns(e.principal) })
	c.refused.dropIf(func(*entry) bool { return true }) // whose they might be now is not known
	c.cfg.Changed(ch)
}

// Run asks what changed until ctx is done, and then waits for what is under way.
func (c *Cache) Run(ctx context.Context) {
	defer c.close()
	var after int64
	down := false
	for pause.For(ctx, pause.Between(pollLow, pollHigh), nil) {
		err := c.poll(ctx, &after)
		switch {
		case ctx.Err() != nil:
		case err != nil && !down:
			c.logger.WarnContext(ctx, "the auth service does not tell what changed; who is known goes on for the grace",
				slog.Duration("grace", c.cfg.Grace), slog.Any("error", err))
		case err == nil && down:
			c.logger.InfoContext(ctx, "the auth service tells again what changed")
		}
		down = err != nil
	}
}

// poll asks once what changed behind a revision.
func (c *Cache) poll(ctx context.Context, after *int64) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	res, err := c.source.ListChanges(ctx, &wiggleinternalv1.ListChangesRequest{After: *after})
	if err != nil {
		return faults.FromError(err)
	}
	c.polled.Store(time.Now().UnixNano())
	if res.GetRevision() < *after {
		c.restart(ctx, *after, res.GetRevision())
	} else {
		c.Apply(res)
	}
	*after = res.GetRevision()
	return nil
}

// restart forgets everything: the auth shard was restored from a backup, or is another one.
func (c *Cache) restart(ctx context.Context, before, now int64) {
	c.logger.WarnContext(ctx, "the auth service's revision went back: everybody is asked for anew",
		slog.Int64("before", before), slog.Int64("now", now))
	c.seen.restart()
	for _, s := range []*store{c.held, c.refused} {
		s.dropIf(func(*entry) bool { return true })
	}
	c.cfg.Changed(Change{Revision: now, all: true})
}

// close ends what is under way.
func (c *Cache) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.background.Wait()
}
