package principals

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
)

const (
	// maxPrincipals bounds what is kept; maxRefused what is kept of credentials that are none.
	maxPrincipals = 20_000
	maxRefused    = 4096
	// maxFlights bounds the calls under way for credentials that are not known.
	maxFlights = 512
	// refusedFor is how long a refusal is kept.
	refusedFor = time.Second
	// askTimeout bounds the question whose a credential is, over all auth processes.
	askTimeout = 2 * time.Second
	// askPause is the pause between questions while nobody answers.
	askPause = time.Second
	// comeBack is what callers are told to wait while nobody answers.
	comeBack = time.Second
	// maxCredentialBytes is the longest credential there is, as the schema has it.
	maxCredentialBytes = 512
)

// Kind is what a credential is.
type Kind byte

const (
	// Token is an API key or the token of a session.
	Token Kind = 1
	// Certificate is the subject of a client certificate that TLS has verified.
	Certificate Kind = 2
)

// Credential is what a call shows.
type Credential struct {
	Kind Kind
	Text string
}

// Key stands for a credential.
type Key [sha256.Size]byte

// key is the hash of the credential with its kind.
func (c Credential) key() Key {
	var buffer [1 + maxCredentialBytes]byte
	buffer[0] = byte(c.Kind)
	n := copy(buffer[1:], c.Text)
	return sha256.Sum256(buffer[:1+n])
}

func (c Credential) request() *wiggleinternalv1.AuthenticateRequest {
	if c.Kind == Certificate {
		return &wiggleinternalv1.AuthenticateRequest{
			Credential: &wiggleinternalv1.AuthenticateRequest_CertificateSubject{CertificateSubject: c.Text},
		}
	}
	return &wiggleinternalv1.AuthenticateRequest{Credential: &wiggleinternalv1.AuthenticateRequest_Token{Token: c.Text}}
}

// Source is the auth service. Its errors are *faults.Error.
type Source interface {
	Authenticate(context.Context, *wiggleinternalv1.AuthenticateRequest) (*wiggleinternalv1.AuthenticateResponse, error)
	ListChanges(context.Context, *wiggleinternalv1.ListChangesRequest) (*wiggleinternalv1.ListChangesResponse, error)
}

// Config says how long what is remembered.
type Config struct {
	// TTL is how long an answer counts without asking again.
	TTL time.Duration
	// Grace is how long an answer counts while no auth process answers.
	Grace time.Duration
	// Limit bounds what is kept. 0: 20 000.
	Limit int
	// Changed, if set, is told of every change, after what it concerns has been forgotten. It must not block.
	Changed func(Change)
}

// Cache knows principals. It is safe for concurrent use.
type Cache struct {
	cfg    Config
	source Source
	logger *slog.Logger

	held    *store
	refused *store
	seen    seen
	counts  counts

	failing atomic.Bool  // the last question was not answered
	retryAt atomic.Int64 // until when none is asked in advance, in Unix nanoseconds
	polled  atomic.Int64 // when changes were last heard of, in Unix nanoseconds

	ctx        context.Context //nolint:containedctx // of the questions, which outlive the calls that ask them
	cancel     context.CancelFunc
	background sync.WaitGroup

	mu      sync.Mutex
	flights map[Key]*flight
	closed  bool
}

// counts are how lookups ended.
type counts struct{ hits, misses, stale, refused atomic.Int64 }

// New makes a cache over the auth service. It asks while Run runs.
func New(cfg Config, source Source, logger *slog.Logger, meter metric.Meter) (*Cache, error) {
	if cfg.Limit == 0 {
		cfg.Limit = maxPrincipals
	}
	if cfg.Changed == nil {
		cfg.Changed = func(Change) {}
	}
	c := &Cache{
		cfg: cfg, source: source, logger: logger,
		held: newStore(cfg.Limit), refused: newStore(maxRefused), flights: map[Key]*flight{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.polled.Store(time.Now().UnixNano())
	return c, c.measure(meter)
}

// Lookup tells whose a credential is. One that is none is UNAUTHENTICATED; UNAVAILABLE if that cannot be found out now. A
// hit costs a hash and a read, and allocates nothing.
func (c *Cache) Lookup(ctx context.Context, credential Credential) (*identity.Principal, error) {
	if len(credential.Text) > maxCredentialBytes {
		return nil, refusal()
	}
	key, now := credential.key(), time.Now()
	if e := c.held.get(&key); e != nil {
		switch age := now.Sub(e.asked); {
		case e.ended(now):
			c.held.drop(e)
			c.counts.refused.Add(1)
			return nil, refusal()
		case age < c.cfg.TTL:
			c.counts.hits.Add(1)
			if now.After(e.renewAt) {
				c.renew(&key, credential, now)
			}
			return e.principal, nil
		case c.failing.Load() && age < c.cfg.Grace:
			// It is not asked for again by this call: while nobody answers each would wait for that.
			c.counts.stale.Add(1)
			c.renew(&key, credential, now)
			return e.principal, nil
		}
	}
	if e := c.refused.get(&key); e != nil && now.Sub(e.asked) < refusedFor {
		c.counts.refused.Add(1)
		return nil, refusal()
	}
	return c.ask(ctx, &key, credential)
}

// refusal is the same whatever is wrong with a credential.
func refusal() error {
	return faults.Unauthenticated("the API key or session is not valid: it is unknown, has ended or was revoked;" +
		" set WIGGLE_API_KEY to one that is valid, or sign in again (wiggle login)")
}

// ask asks the auth service, or waits for the answer to somebody else's question.
func (c *Cache) ask(ctx context.Context, key *Key, credential Credential) (*identity.Principal, error) {
	c.counts.misses.Add(1)
	f, err := c.fly(key, credential)
	if err != nil {
		return nil, err
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if f.err == nil || !f.unanswered {
		return f.principal, f.err
	}
	// A change that came meanwhile has dropped the entry.
	now := time.Now()
	if e := c.held.get(key); e != nil && !e.ended(now) && now.Sub(e.asked) < c.cfg.Grace {
		c.counts.stale.Add(1)
		return e.principal, nil
	}
	return nil, f.err
}

// renew asks again in background, at most once a second while nobody answers.
func (c *Cache) renew(key *Key, credential Credential, now time.Time) {
	if c.failing.Load() {
		at := c.retryAt.Load()
		if now.UnixNano() < at || !c.retryAt.CompareAndSwap(at, now.Add(askPause).UnixNano()) {
			return
		}
	}
	_, _ = c.fly(key, credential) // if there is no room, the next call tries
}

// Size tells how many principals are remembered.
func (c *Cache) Size() int { return int(c.held.size.Load()) }

// measure makes the metrics.
func (c *Cache) measure(meter metric.Meter) error {
	lookups, err := meter.Int64ObservableCounter("wiggle.auth.cache", metric.WithUnit("{lookup}"),
		metric.WithDescription("Credentials looked up, by result: hit, miss, stale (no auth process answers) or refused."))
	if err != nil {
		return err
	}
	size, err := meter.Int64ObservableGauge("wiggle.auth.cache_size", metric.WithUnit("{principal}"),
		metric.WithDescription("Principals that are remembered."))
	if err != nil {
		return err
	}
	lag, err := meter.Float64ObservableGauge("wiggle.auth.changes_lag", metric.WithUnit("s"),
		metric.WithDescription("How long ago the auth service last told what changed."))
	if err != nil {
		return err
	}
	results := []struct {
		n      *atomic.Int64
		option metric.MeasurementOption
	}{
		{&c.counts.hits, result("hit")},
		{&c.counts.misses, result("miss")},
		{&c.counts.stale, result("stale")},
		{&c.counts.refused, result("refused")},
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, r := range results {
			o.ObserveInt64(lookups, r.n.Load(), r.option)
		}
		o.ObserveInt64(size, c.held.size.Load())
		o.ObserveFloat64(lag, time.Since(time.Unix(0, c.polled.Load())).Seconds())
		return nil
	}, lookups, size, lag)
	return err
}
