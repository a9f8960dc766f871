package trouble

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
)

const (
	// revokedWithin is how long a credential may be accepted after a change (AUT-5), watched for how long it is tried after it.
	revokedWithin = time.Second
	watched       = 2 * time.Second
	// shortCache is a cache's time that a test can wait for, and still longer than a revocation may take.
	shortCache = 3 * time.Second
	// callers is how many goroutines call each router with one credential; callPause is between their calls.
	callers   = 2
	callPause = 2 * time.Millisecond
)

// checked starts a cluster that checks its callers, and signs its administrator in.
func checked(t *testing.T, cfg cluster.Config, more time.Duration) (context.Context, *cluster.Cluster, cluster.Clients) {
	t.Helper()
	ctx, c, nobody := startFor(t, cfg, patience+more)
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	admin := as(t, c.RouterURL(), signIn(ctx, t, nobody, cluster.AdminName, c.AdminPassword))
	register(ctx, t, admin)
	return ctx, c, admin
}

func as(t *testing.T, url, credential string) cluster.Clients {
	t.Helper()
	clients, err := cluster.DialAs(url, credential)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

func signIn(ctx context.Context, t *testing.T, nobody cluster.Clients, name, password string) (token string) {
	t.Helper()
	if _, err := until(ctx, func() error {
		res, err := nobody.Auth.SignIn(ctx, &wigglev1.SignInRequest{Name: name, Password: password})
		token = res.GetToken()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return token
}

// newKey makes a key, and tells its id and its secret.
func newKey(ctx context.Context, t *testing.T, admin cluster.Clients, name string, roles ...string) (id, secret string) {
	t.Helper()
	res, err := admin.Keys.CreateKey(ctx, &wigglev1.CreateKeyRequest{Name: name, Roles: roles})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetKey().GetId(), res.GetSecret()
}

// revocation is one way of taking a credential's rights, while it is used.
type revocation struct {
	name string
	// grant makes a credential; the function that it returns takes its rights.
	grant func(name string) (credential string, revoke func() error)
	// refused is what its calls are answered with afterwards.
	refused faults.Code
}

// TestRevokedUnderLoad: a key is revoked, a role emptied, an account disabled while calls are made with it over both routers: none is
// accepted that began a second later, and what waits has ended by then (AUT-5). So it is with NATS, without it, and with one of two
// auth processes gone.
func TestRevokedUnderLoad(t *testing.T) {
	ctx, c, admin := checked(t, cluster.Config{Shards: 2, Processes: 1, Routers: 2, Auth: 2, Search: true}, time.Minute)
	for _, url := range c.RouterURLs() {
		waitProcessesAt(ctx, t, url, len(c.Instances))
	}
	ways := []revocation{
		{"a key revoked", func(name string) (string, func() error) {
			id, secret := newKey(ctx, t, admin, name, "admin")
			return secret, func() error {
				_, err := admin.Keys.RevokeKey(ctx, &wigglev1.RevokeKeyRequest{Key: id})
				return err
			}
		}, faults.CodeUnauthenticated},
		{"a role emptied", func(name string) (string, func() error) {
			put := func(permissions ...string) error {
				_, err := admin.Roles.PutRole(ctx, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: name, Permissions: permissions}})
				return err
			}
			if err := put("instance.start", "task.poll"); err != nil {
				t.Fatal(err)
			}
			_, secret := newKey(ctx, t, admin, name, name)
			return secret, func() error { return put() }
		}, faults.CodePermissionDenied},
		{"an account disabled", func(name string) (string, func() error) {
			const password = "correct horse battery"
			if _, err := admin.Accounts.CreateAccount(ctx, &wigglev1.CreateAccountRequest{
				Name: name, Password: password, Roles: []string{"admin"},
			}); err != nil {
				t.Fatal(err)
			}
			return signIn(ctx, t, admin, name, password), func() error {
				disabled := true
				_, err := admin.Accounts.UpdateAccount(ctx, &wigglev1.UpdateAccountRequest{Name: name, Disabled: &disabled})
				return err
			}
		}, faults.CodeUnauthenticated},
	}
	for i, when := range []struct {
		name    string
		prepare func()
	}{
		{"with NATS", func() {}},
		{"without NATS", c.NATS.Kill},
		{"with one auth process", c.Auth[0].Kill},
	} {
		when.prepare()
		if _, err := until(ctx, func() error { // a connection that broke may leave a change's outcome unknown
			_, err := admin.Keys.ListKeys(ctx, &wigglev1.ListKeysRequest{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for _, w := range ways {
			t.Run(w.name+" "+when.name, func(t *testing.T) {
				credential, revoke := w.grant(fmt.Sprintf("%c%d", w.name[len(w.name)-1], i))
				u := use(ctx, t, c, credential)
				u.awaitAccepted(ctx, t)
				asked := time.Now()
				if err := revoke(); err != nil {
					t.Fatal(err)
				}
				revoked := time.Now()
				cluster.Pause(ctx, watched)
				u.end()
				u.judge(t, asked, revoked, w.refused)
			})
		}
	}
}

// usage is a credential in use.
type usage struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu    sync.Mutex
	calls []usedCall
	waits []usedCall
}

// usedCall is one call, or one wait or stream.
type usedCall struct {
	what         string
	began, ended time.Time
	err          error
}

// use calls both routers with a credential: starts as fast as they are answered, and on each a poll and a stream that wait.
func use(ctx context.Context, t *testing.T, c *cluster.Cluster, credential string) *usage {
	t.Helper()
	u := &usage{}
	ctx, u.stop = context.WithCancel(ctx)
	for _, url := range c.RouterURLs() {
		for i := range callers {
			clients := as(t, url, credential)
			u.done.Go(func() {
				for ctx.Err() == nil {
					u.note(ctx, &u.calls, "start", func() error {
						_, err := clients.Instances.StartInstance(ctx, startOn(c.Topology, i%2))
						return err
					})
					cluster.Pause(ctx, callPause)
				}
			})
		}
		clients := as(t, url, credential)
		u.done.Go(func() {
			u.note(ctx, &u.waits, "poll", func() error {
				_, err := clients.Workers.PollTasks(ctx, &wigglev1.PollTasksRequest{
					Worker: "poller", Queues: []string{"empty"}, Wait: durationpb.New(time.Minute),
				})
				return err
			})
		})
		u.done.Go(func() {
			u.note(ctx, &u.waits, "stream", func() error {
				stream, err := clients.Workers.Work(ctx)
				if err != nil {
					return err
				}
				hello := &wigglev1.WorkHello{Worker: "streamer", Queues: []string{"empty"}}
				if err := stream.Send(&wigglev1.WorkRequest{Hello: hello, Credits: 1}); err != nil {
					return err
				}
				for {
					if _, err := stream.Receive(); err != nil {
						return err
					}
				}
			})
		})
	}
	return u
}

func (u *usage) note(ctx context.Context, in *[]usedCall, what string, call func() error) {
	began := time.Now()
	err := call()
	if ctx.Err() != nil {
		return // the test's own end
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	*in = append(*in, usedCall{what: what, began: began, ended: time.Now(), err: err})
}

func (u *usage) end() {
	u.stop()
	u.done.Wait()
}

// awaitAccepted waits until each router must have the credential in its cache, and calls are accepted.
func (u *usage) awaitAccepted(ctx context.Context, t *testing.T) {
	t.Helper()
	const enough = 20 * callers
	if _, err := until(ctx, func() error {
		u.mu.Lock()
		defer u.mu.Unlock()
		if len(u.calls) < enough {
			return fmt.Errorf("%d calls were answered", len(u.calls))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// judge holds the calls against the moments when the change was asked for and when it was confirmed.
func (u *usage) judge(t *testing.T, asked, revoked time.Time, refused faults.Code) {
	t.Helper()
	accepted, late, after := 0, 0, 0
	var last time.Duration
	for _, call := range u.calls {
		since := call.began.Sub(revoked)
		if since > revokedWithin {
			after++
		}
		switch code := faults.CodeOf(call.err); {
		case code == faults.CodeOK:
			accepted++
			last = max(last, since)
			if since > revokedWithin {
				late++
			}
		case call.ended.Before(asked) || code != refused:
			t.Errorf("a start that began %s after the change ended with %v", since, call.err)
		}
	}
	t.Logf("%d calls were accepted, the last began %s after the change; %d began a second after it or later, %d of them were accepted",
		accepted, last.Round(time.Millisecond), after, late)
	if late > 0 || after == 0 {
		t.Errorf("%d of %d calls that began a second after the change or later were accepted", late, after)
	}
	ended := map[string]int{}
	for _, wait := range u.waits {
		ended[wait.what]++
		since := wait.ended.Sub(revoked)
		// A role that allows nothing of the kind ends the wait; it is told to come again, and is refused then.
		if code := faults.CodeOf(wait.err); wait.ended.Before(asked) || since > revokedWithin || code != refused && code != faults.CodeUnavailable {
			t.Errorf("a %s ended %s after the change, with %v", wait.what, since, wait.err)
		}
	}
	if len(ended) != 2 || ended["poll"] != ended["stream"] {
		t.Errorf("waits that have ended: %v", ended)
	}
}

// TestAuthDown: with the auth shard down who is known goes on, past the time that the cache has, at its usual pace; sign-in is
// UNAVAILABLE, and so is who is not known. It is as before when the shard is back (AUT-6). So it is with the auth processes gone.
func TestAuthDown(t *testing.T) {
	ctx, c, admin := checked(t, cluster.Config{Shards: 2, Processes: 1, Auth: 2, AuthCache: shortCache}, time.Minute)
	_, known := newKey(ctx, t, admin, "known", "admin")
	app := as(t, c.RouterURL(), known)
	if _, err := app.Auth.WhoAmI(ctx, &wigglev1.WhoAmIRequest{}); err != nil {
		t.Fatal(err)
	}
	for i, away := range []struct {
		name       string
		stop, back func() error
	}{
		{"the auth shard", c.AuthDatabase.Kill, func() error { return c.AuthDatabase.Start(ctx) }},
		{"the auth service", func() error {
			for _, p := range c.Auth {
				p.Kill()
			}
			return nil
		}, func() error {
			var errs []error
			for _, p := range c.Auth {
				errs = append(errs, p.Start())
			}
			return errors.Join(errs...)
		}},
	} {
		_, unknown := newKey(ctx, t, admin, fmt.Sprintf("unknown-%d", i), "admin")
		stranger := as(t, c.RouterURL(), unknown)
		l := startLoad(ctx, c, app)
		usual := l.usual(ctx, usualTime)
		if err := away.stop(); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); time.Since(began) < 2*shortCache; cluster.Pause(ctx, time.Second) {
			wantAuthUnavailable(t, "sign-in", func() error {
				_, err := app.Auth.SignIn(ctx, &wigglev1.SignInRequest{Name: cluster.AdminName, Password: c.AdminPassword})
				return err
			})
			wantAuthUnavailable(t, "a start with a key that no router knows", func() error {
				_, err := stranger.Instances.StartInstance(ctx, startOn(c.Topology, 0))
				return err
			})
		}
		l.compare(t, "without "+away.name, usual)
		if err := away.back(); err != nil {
			t.Fatal(err)
		}
		signIn(ctx, t, app, cluster.AdminName, c.AdminPassword)
		if _, err := until(ctx, func() error {
			_, err := stranger.Instances.StartInstance(ctx, startOn(c.Topology, 0))
			return err
		}); err != nil {
			t.Errorf("a key that was not known, with %s back: %v", away.name, err)
		}
		l.end(ctx, t)
	}
}

// wantAuthUnavailable makes a call that needs the auth service: UNAVAILABLE within about a second, with a hint when to try again.
func wantAuthUnavailable(t *testing.T, what string, call func() error) {
	t.Helper()
	began := time.Now()
	err := call()
	took := time.Since(began)
	fault, _ := errors.AsType[*faults.Error](err)
	if faults.CodeOf(err) != faults.CodeUnavailable || took > soon {
		t.Errorf("%s was answered after %s with %v", what, took, err)
		return
	}
	if after, ok := fault.RetryAfter(); !ok || after <= 0 || after > 5*time.Second {
		t.Errorf("%s: the hint when to try again is %s, %t", what, after, ok)
	}
}
