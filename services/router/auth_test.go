package router_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router"
)

// withAuth runs a test against a cluster whose callers are checked, over processes if they are given, else one with all shards.
func withAuth(t *testing.T, test func(c *cluster, a *fakeAuth), processes ...map[string][]int) {
	t.Helper()
	processes = append(processes, map[string][]int{"a": {0, 1, 2}})
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAuth(t)
		c := newCluster(t, processes[0], a.option)
		defer c.close()
		a.net = c.net
		a.up()
		defer a.down()
		time.Sleep(time.Second) // of the bubble: the router finds it
		test(c, a)
	})
}

// as is a context whose calls show a key.
func as(ctx context.Context, name string) context.Context {
	ctx, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set("Authorization", "Bearer "+tokenOf(name))
	return ctx
}

// AUT-5: a key that is revoked under load is not accepted a second later, and what waits with it ends.
func TestRevokedUnderLoad(t *testing.T) {
	t.Parallel()
	withAuth(t, func(c *cluster, a *fakeAuth) {
		a.add("ci", "*")
		if _, err := c.shards.ListShards(as(c.t.Context(), "ci"), &wigglev1.ListShardsRequest{}); err != nil {
			t.Fatal(err)
		}
		polled := make(chan error, 1)
		go func() {
			_, err := c.workers.PollTasks(as(c.t.Context(), "ci"), &wigglev1.PollTasksRequest{Worker: "w", Wait: durationpb.New(time.Minute)})
			polled <- err
		}()
		w := c.workIn(as(c.t.Context(), "ci"), c.workers, &wigglev1.WorkHello{Worker: "w", Queues: []string{"q"}}).reading()
		a.revoke("ci")
		revoked, late := time.Now(), 0
		for time.Since(revoked) < 3*time.Second {
			began := time.Now()
			_, err := c.shards.ListShards(as(c.t.Context(), "ci"), &wigglev1.ListShardsRequest{})
			if err == nil && began.Sub(revoked) > time.Second {
				late++
			}
			time.Sleep(10 * time.Millisecond) // of the bubble
		}
		if late > 0 {
			t.Errorf("%d calls were accepted later than a second after the key was revoked", late)
		}
		for what, ended := range map[string]chan error{"poll": polled, "stream": w.ended} {
			select {
			case err := <-ended:
				if faults.CodeOf(err) != faults.CodeUnauthenticated {
					t.Errorf("the %s ended with %v", what, err)
				}
			default:
				t.Errorf("the %s goes on", what)
			}
		}
		w.leave()
	})
}

// AUT-6: with auth down who is known goes on, sign-in is UNAVAILABLE, and nobody new begins.
func TestAuthDown(t *testing.T) {
	t.Parallel()
	withAuth(t, func(c *cluster, a *fakeAuth) {
		a.add("ci", "*")
		a.add("new", "*")
		list := func(name string) error {
			_, err := c.shards.ListShards(as(c.t.Context(), name), &wigglev1.ListShardsRequest{})
			return err
		}
		if err := list("ci"); err != nil {
			t.Fatal(err)
		}
		a.down()
		defer a.up()
		for range 10 {
			time.Sleep(time.Minute)
			if err := list("ci"); err != nil {
				t.Fatalf("who is known: %v", err)
			}
		}
		if err := list("new"); !errors.Is(err, faults.ErrUnavailable) {
			t.Errorf("who is not known: %v", err)
		}
		auth := wigglev1connect.NewAuthServiceClient(c.http, "http://router")
		if _, err := auth.SignIn(c.t.Context(), &wigglev1.SignInRequest{Name: "a", Password: "p"}); connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("sign-in: %v", err)
		}
		who, err := auth.WhoAmI(as(c.t.Context(), "ci"), &wigglev1.WhoAmIRequest{})
		if err != nil || who.GetName() != "ci" || who.GetKind() != "key" || !who.GetEnforced() {
			t.Errorf("%v, %v", who, err)
		}
	})
}

// Items of a batch that are denied do not hold up the others; what was denied is in the audit log.
func TestDeniedItems(t *testing.T) {
	t.Parallel()
	withAuth(t, func(c *cluster, a *fakeAuth) {
		a.add("ci", "instance.start:orders/*")
		res, err := c.instances.StartInstances(as(c.t.Context(), "ci"), &wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{
			{Namespace: "shop", Workflow: "w"}, {Namespace: "orders", Workflow: "w"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		first, second := res.GetOutcomes()[0], res.GetOutcomes()[1]
		if first.GetFault().GetPermissionMissing().GetPermission() != "instance.start:shop/w" || second.GetFault().GetPermissionMissing() != nil {
			t.Errorf("outcomes: %v", res.GetOutcomes())
		}
		time.Sleep(5 * time.Second) // of the bubble
		recorded := a.recorded()
		if len(recorded) != 1 || recorded[0].GetPrincipal() != "key/ci" || recorded[0].GetAllowed() || recorded[0].GetAt() == nil {
			t.Errorf("the audit log has %v", recorded)
		}
	})
}

// A worker takes tasks of its queues only.
func TestLimitedWorker(t *testing.T) {
	t.Parallel()
	withAuth(t, func(c *cluster, a *fakeAuth) {
		a.add("gpu", "task.poll:*/gpu")
		for queue, code := range map[string]faults.Code{"gpu": faults.CodeOK, "cpu": faults.CodePermissionDenied, "": faults.CodePermissionDenied} {
			var queues []string
			if queue != "" {
				queues = append(queues, queue)
			}
			_, err := c.workers.PollTasks(as(c.t.Context(), "gpu"), &wigglev1.PollTasksRequest{Worker: "w", Queues: queues})
			if faults.CodeOf(err) != code || err != nil && !strings.Contains(err.Error(), "only task.poll:*/gpu") {
				t.Errorf("a poll of %q: %v", queue, err)
			}
			w := c.workIn(as(c.t.Context(), "gpu"), c.workers, &wigglev1.WorkHello{Worker: "w", Queues: queues}).reading()
			select {
			case err := <-w.ended:
				if faults.CodeOf(err) != code {
					t.Errorf("a stream of %q: %v", queue, err)
				}
			default:
				if code != faults.CodeOK {
					t.Errorf("a stream of %q is open", queue)
				}
			}
			w.leave()
		}
	})
}

// The auth service learns who calls, and from where; browsers get their session in a cookie that no page can read.
func TestAuthProxies(t *testing.T) {
	t.Parallel()
	withAuth(t, func(c *cluster, a *fakeAuth) {
		a.add("ci", "key.read")
		keys := wigglev1connect.NewKeyServiceClient(c.http, "http://router")
		if _, err := keys.ListKeys(as(c.t.Context(), "ci"), &wigglev1.ListKeysRequest{}); err != nil {
			t.Fatal(err)
		}
		if caller, address := a.lastCaller(); caller != "key/ci" || address == "" {
			t.Errorf("the auth service was told %q from %q", caller, address)
		}
		auth := wigglev1connect.NewAuthServiceClient(c.http, "http://router")
		res, err := auth.SignIn(c.t.Context(), &wigglev1.SignInRequest{Name: "a", Password: "p"})
		if err != nil || res.GetToken() == "" {
			t.Errorf("a program signs in: %v, %v", res, err)
		}
		if caller, _ := a.lastCaller(); caller != "" {
			t.Errorf("nobody was signed in, and the auth service was told %q", caller)
		}
		ctx, _ := connect.NewClientContext(c.t.Context())
		if _, err := auth.SignIn(ctx, &wigglev1.SignInRequest{Name: "a", Password: "p", Cookie: true}); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("a cookie for no page of this router: %v", err)
		}
		ctx, info := connect.NewClientContext(c.t.Context())
		info.RequestHeader().Set("Sec-Fetch-Site", "same-origin")
		res, err = auth.SignIn(ctx, &wigglev1.SignInRequest{Name: "a", Password: "p", Cookie: true})
		if err != nil || res.GetToken() != "" || res.GetSession().GetId() != "s1" {
			t.Fatalf("a browser signs in: %v, %v", res, err)
		}
		cookies := (&http.Response{Header: info.ResponseHeader()}).Cookies()
		if len(cookies) != 1 || cookies[0].Name != "wiggle_session" || cookies[0].Value != "wgs_s1_0123456789" || !cookies[0].HttpOnly ||
			!cookies[0].Secure || cookies[0].SameSite != http.SameSiteStrictMode || cookies[0].Path != "/" || cookies[0].Domain != "" ||
			cookies[0].Expires.Before(time.Now()) {
			t.Errorf("cookies: %v", cookies)
		}
	})
}

// Who signs out with a cookie has the browser forget it, also while the auth service cannot end the session.
func TestSignOut(t *testing.T) {
	t.Parallel()
	withAuth(t, func(c *cluster, a *fakeAuth) {
		t := c.t
		const token = "wgs_s1_0123456789"
		a.mu.Lock()
		a.keys[token] = &wiggleinternalv1.Principal{
			Kind: wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_USER, Name: "ada", CredentialId: "s1",
		}
		a.mu.Unlock()
		auth := wigglev1connect.NewAuthServiceClient(c.http, "http://router")
		signOut := func(site string) ([]*http.Cookie, error) {
			ctx, info := connect.NewClientContext(t.Context())
			info.RequestHeader().Set("Cookie", "wiggle_session="+token)
			info.RequestHeader().Set("Sec-Fetch-Site", site)
			_, err := auth.SignOut(ctx, &wigglev1.SignOutRequest{})
			header := info.ResponseHeader()
			if e, ok := errors.AsType[*connect.Error](err); ok {
				header = e.Meta()
			}
			return (&http.Response{Header: header}).Cookies(), err
		}
		forgets := func(cookies []*http.Cookie) bool {
			return len(cookies) == 1 && cookies[0].Name == "wiggle_session" && cookies[0].Value == "" && cookies[0].Expires.Before(time.Now()) &&
				cookies[0].Path == "/" && cookies[0].HttpOnly && cookies[0].Secure && cookies[0].SameSite == http.SameSiteStrictMode
		}
		if cookies, err := signOut("cross-site"); connect.CodeOf(err) != connect.CodeUnauthenticated || len(cookies) > 0 {
			t.Errorf("another site signs out: %v, %v", cookies, err)
		}
		if cookies, err := signOut("same-origin"); err != nil || !forgets(cookies) {
			t.Errorf("signed out: %v, %v", cookies, err)
		}
		if caller, _ := a.lastCaller(); caller != "user/ada" {
			t.Errorf("the auth service was told that %q signs out", caller)
		}
		a.down()
		defer a.up()
		if cookies, err := signOut("same-origin"); connect.CodeOf(err) != connect.CodeUnavailable || !forgets(cookies) {
			t.Errorf("signed out while auth is away: %v, %v", cookies, err)
		}
	})
}

// WIGGLE_AUTH=off: everybody is anonymous, and told so; without auth processes accounts are unimplemented.
func TestAuthOff(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0, 1, 2}}, func(c *cluster) {
		auth := wigglev1connect.NewAuthServiceClient(c.http, "http://router")
		who, err := auth.WhoAmI(c.t.Context(), &wigglev1.WhoAmIRequest{})
		if err != nil || who.GetKind() != "anonymous" || who.GetEnforced() {
			t.Errorf("%v, %v", who, err)
		}
		_, err = auth.SignIn(c.t.Context(), &wigglev1.SignInRequest{Name: "a", Password: "p"})
		if connect.CodeOf(err) != connect.CodeUnimplemented || !strings.Contains(err.Error(), "WIGGLE_AUTH_URLS") {
			t.Errorf("sign-in: %v", err)
		}
	}, func(cfg *router.Config) { cfg.AuthOff = true })
}
