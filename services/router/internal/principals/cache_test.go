package principals_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/principals"
)

// auth is an auth service: keys by their tokens, with what changed.
type auth struct {
	mu       sync.Mutex
	keys     map[string]*wiggleinternalv1.Principal
	revision int64
	changes  map[int64]string // credential by revision
	down     bool
	asked    int
	hold     chan struct{} // an answer that was read waits for it, once
	read     chan struct{} // told when it was read
}

func newAuth() *auth {
	return &auth{
		keys: map[string]*wiggleinternalv1.Principal{}, changes: map[int64]string{}, revision: 1, read: make(chan struct{}, 1),
	}
}

func key(id string) string { return "wgk_" + id + "_secret" }

func (a *auth) add(id string, permissions ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keys[key(id)] = &wiggleinternalv1.Principal{
		Kind: wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_KEY, Name: id, CredentialId: id, Permissions: permissions,
	}
}

func (a *auth) revoke(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.keys, key(id))
	a.revision++
	a.changes[a.revision] = id
}

func (a *auth) set(change func(*auth)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

func (a *auth) questions() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

func (a *auth) Authenticate(
	ctx context.Context, req *wiggleinternalv1.AuthenticateRequest,
) (*wiggleinternalv1.AuthenticateResponse, error) {
	a.mu.Lock()
	a.asked++
	p, known := a.keys[req.GetToken()]
	res := &wiggleinternalv1.AuthenticateResponse{Principal: p, Revision: a.revision}
	down, hold := a.down, a.hold
	a.hold = nil
	a.mu.Unlock()
	if hold != nil {
		a.read <- struct{}{}
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, faults.FromError(ctx.Err())
		}
	}
	switch {
	case down:
		return nil, faults.Unavailable(time.Second, "down")
	case !known:
		return nil, faults.Unauthenticated("unknown")
	}
	return res, nil
}

func (a *auth) ListChanges(
	_ context.Context, req *wiggleinternalv1.ListChangesRequest,
) (*wiggleinternalv1.ListChangesResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return nil, faults.Unavailable(time.Second, "down")
	}
	res := &wiggleinternalv1.ListChangesResponse{Revision: a.revision}
	for revision, id := range a.changes {
		if revision > req.GetAfter() {
			res.CredentialIds = append(res.CredentialIds, id)
		}
	}
	return res, nil
}

const (
	ttl   = 30 * time.Second
	grace = 15 * time.Minute
)

// inBubble runs a test against a cache of an auth service, under a clock of its own.
func inBubble(t *testing.T, test func(t *testing.T, a *auth, c *principals.Cache)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAuth()
		c, stop := start(t, a, principals.Config{TTL: ttl, Grace: grace})
		defer stop()
		test(t, a, c)
	})
}

func start(t testing.TB, source principals.Source, cfg principals.Config) (c *principals.Cache, stop func()) {
	t.Helper()
	c, err := principals.New(cfg, source, slog.New(slog.DiscardHandler), noop.NewMeterProvider().Meter("test"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	return c, func() {
		cancel()
		<-done
	}
}

func lookup(t testing.TB, c *principals.Cache, id string) (*identity.Principal, error) {
	t.Helper()
	return c.Lookup(t.Context(), principals.Credential{Kind: principals.Token, Text: key(id)})
}

func is(t testing.TB, c *principals.Cache, id string, want error) {
	t.Helper()
	p, err := lookup(t, c, id)
	if !errors.Is(err, want) || (err == nil) != (want == nil) || err == nil && p.Message().GetName() != id {
		t.Errorf("%s is %v, %v; want %v", id, p, err, want)
	}
}

// AUT-6: concurrent misses for one key make one call.
func TestOneQuestion(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		a.add("a")
		hold := make(chan struct{})
		a.set(func(a *auth) { a.hold = hold })
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { is(t, c, "a", nil) })
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		is(t, c, "a", nil)
		if n := a.questions(); n != 1 {
			t.Errorf("%d questions", n)
		}
	})
}

// AUT-5: a change drops the entry within a second, without NATS.
func TestRevoked(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		a.add("a")
		a.add("b")
		is(t, c, "a", nil)
		is(t, c, "b", nil)
		a.revoke("a")
		is(t, c, "a", nil) // it is not known here yet
		time.Sleep(time.Second)
		is(t, c, "a", faults.ErrUnauthenticated)
		is(t, c, "b", nil)
		if n := a.questions(); n != 3 {
			t.Errorf("%d questions: only the one that changed is to be asked for again", n)
		}
	})
}

// An answer that was read before a change and comes after it is not kept, and not used.
func TestLateAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		a.add("a")
		hold := make(chan struct{})
		a.set(func(a *auth) { a.hold = hold })
		var wg sync.WaitGroup
		wg.Go(func() { is(t, c, "a", faults.ErrUnauthenticated) })
		<-a.read
		a.revoke("a")
		time.Sleep(time.Second)
		close(hold)
		wg.Wait()
		is(t, c, "a", faults.ErrUnauthenticated)
	})
}

// A change that is told twice, or late, does not drop what was read after it.
func TestChangeToldTwice(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		a.add("a")
		a.set(func(a *auth) { a.revision = 7 })
		is(t, c, "a", nil)
		for _, revision := range []int64{6, 7} {
			c.Apply(&wiggleinternalv1.ListChangesResponse{Revision: revision, All: true})
		}
		is(t, c, "a", nil)
		if n := a.questions(); n != 1 {
			t.Errorf("%d questions", n)
		}
		c.Apply(&wiggleinternalv1.ListChangesResponse{Revision: 8, Accounts: []string{"A"}})
		a.set(func(a *auth) { a.revision = 8 })
		is(t, c, "a", nil)
		if n := a.questions(); n != 2 {
			t.Errorf("%d questions", n)
		}
	})
}

// AUT-6: while no auth process answers, who is known goes on until the grace ends, and nobody else begins.
func TestAuthDown(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		a.add("a")
		a.add("b")
		is(t, c, "a", nil)
		a.set(func(a *auth) { a.down = true })
		is(t, c, "b", faults.ErrUnavailable)
		for passed := time.Duration(0); passed < grace-time.Minute; passed += time.Minute {
			is(t, c, "a", nil)
			time.Sleep(time.Minute)
		}
		asked := a.questions()
		for range 1000 {
			is(t, c, "a", nil)
		}
		if n := a.questions() - asked; n > 1 {
			t.Errorf("%d questions at once while nobody answers", n)
		}
		time.Sleep(time.Minute + time.Second)
		is(t, c, "a", faults.ErrUnavailable)
		a.set(func(a *auth) { a.down = false })
		is(t, c, "a", nil)
	})
}

// What was revoked goes on for nobody, whether the auth service answers or not.
func TestRevokedThenDown(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		a.add("a")
		is(t, c, "a", nil)
		c.Apply(&wiggleinternalv1.ListChangesResponse{Revision: 9, CredentialIds: []string{"a"}})
		a.set(func(a *auth) { a.down = true })
		is(t, c, "a", faults.ErrUnavailable)
	})
}

// A credential is not accepted after its own end, whatever is remembered.
func TestEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		a.add("a")
		a.set(func(a *auth) { a.keys[key("a")].ExpiresAt = timestamppb.New(time.Now().Add(5 * time.Second)) })
		is(t, c, "a", nil)
		time.Sleep(5 * time.Second)
		a.set(func(a *auth) { a.down = true })
		if _, err := lookup(t, c, "a"); !errors.Is(err, faults.ErrUnauthenticated) {
			t.Errorf("after its end: %v", err)
		}
	})
}

// A credential in use is asked for in background before its time is over: no call waits for that.
func TestRenewedInAdvance(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		a.add("a")
		is(t, c, "a", nil)
		time.Sleep(ttl * 9 / 10)
		hold := make(chan struct{})
		a.set(func(a *auth) { a.hold = hold })
		is(t, c, "a", nil) // begins it, and does not wait
		<-a.read
		close(hold)
		synctest.Wait()
		time.Sleep(ttl / 2)
		is(t, c, "a", nil)
		if n := a.questions(); n != 2 {
			t.Errorf("%d questions", n)
		}
	})
}

// What is no credential is asked for once a second, and what is known is not displaced by it.
func TestStrangers(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		a.add("a")
		is(t, c, "a", nil)
		for range 100 {
			is(t, c, "x", faults.ErrUnauthenticated)
		}
		if n := a.questions(); n != 2 {
			t.Errorf("%d questions", n)
		}
		a.add("x")
		time.Sleep(time.Second)
		is(t, c, "x", nil)
	})
}

// The auth shard was restored from a backup: nothing that is remembered counts.
func TestRevisionsBeginAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		a.add("a")
		a.set(func(a *auth) { a.revision = 100 })
		time.Sleep(time.Second)
		is(t, c, "a", nil)
		a.set(func(a *auth) { a.revision, a.keys = 3, map[string]*wiggleinternalv1.Principal{} })
		time.Sleep(time.Second)
		is(t, c, "a", faults.ErrUnauthenticated)
	})
}

// What is kept is bounded, and what is used stays.
func TestBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, _ *principals.Cache) {
		c, stop := start(t, a, principals.Config{TTL: ttl, Grace: grace, Limit: 1})
		defer stop()
		for i := range 1000 {
			id := string(rune('a'+i%26)) + string(rune('a'+i/26))
			a.add(id)
			is(t, c, id, nil)
		}
		if n := c.Size(); n > 64 {
			t.Errorf("%d principals are kept", n)
		}
	})
}

// Changes and look-ups at the same time: what is revoked is refused a second later, whatever the order. Run with -race.
func TestRevokedUnderLoad(t *testing.T) {
	inBubble(t, func(t *testing.T, a *auth, c *principals.Cache) {
		ids := []string{"a", "b", "c", "d"}
		for _, id := range ids {
			a.add(id)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		revoked := map[string]time.Time{}
		for _, id := range ids {
			for range 8 {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(time.Millisecond):
						}
						began := time.Now()
						_, err := lookup(t, c, id)
						mu.Lock()
						at, gone := revoked[id]
						mu.Unlock()
						if gone && err == nil && began.Sub(at) > time.Second {
							t.Errorf("%s was accepted %v after it was revoked", id, began.Sub(at))
							return
						}
					}
				})
			}
		}
		for _, id := range ids {
			time.Sleep(300 * time.Millisecond)
			a.revoke(id)
			mu.Lock()
			revoked[id] = time.Now()
			mu.Unlock()
		}
		time.Sleep(3 * time.Second)
		close(stop)
		wg.Wait()
	})
}

func TestHitAllocatesNothing(t *testing.T) {
	a := newAuth()
	a.add("a")
	c, stop := start(t, a, principals.Config{TTL: time.Hour, Grace: time.Hour})
	defer stop()
	is(t, c, "a", nil)
	credential, ctx := principals.Credential{Kind: principals.Token, Text: key("a")}, t.Context()
	if n := testing.AllocsPerRun(100, func() { _, _ = c.Lookup(ctx, credential) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkHit: under 2 microseconds.
func BenchmarkHit(b *testing.B) {
	a := newAuth()
	a.add("a")
	c, stop := start(b, a, principals.Config{TTL: time.Hour, Grace: time.Hour})
	defer stop()
	credential := principals.Credential{Kind: principals.Token, Text: key("a") + "0123456789012345678901234567890123456789012"}
	a.set(func(a *auth) { a.keys[credential.Text] = a.keys[key("a")] })
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Lookup(ctx, credential); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
