package policy_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// AUT-3: the built-in roles.
func TestBuiltIn(t *testing.T) {
	t.Parallel()
	roles := policy.WithBuiltIn([]policy.Role{
		{Name: "boss", Permissions: []string{"*"}}, {Name: "half", Permissions: []string{"*:orders/*"}}, {Name: "none"},
	})
	var names []string
	for _, r := range roles {
		names = append(names, r.Name)
		if _, err := permission.NewSet(r.Permissions); err != nil {
			t.Errorf("%s: %v", r.Name, err)
		}
	}
	if want := []string{"admin", "boss", "half", "none", "operator", "viewer", "worker"}; !slices.Equal(names, want) {
		t.Errorf("roles %v", names)
	}
	if got := roles.Admins(); !slices.Equal(got, []string{"admin", "boss"}) {
		t.Errorf("admins by %v", got)
	}
	if got := roles.Put(policy.Role{Name: "boss", Permissions: []string{"user.*"}}).Admins(); !slices.Equal(got, []string{"admin"}) {
		t.Errorf("admins by %v", got)
	}
	if got := roles.Permissions([]string{"worker", "gone", "half"}, []string{"task.poll", "x.y"}); !slices.Equal(got,
		[]string{"*:orders/*", "task.poll", "workflow.read", "workflow.register", "x.y"}) {
		t.Errorf("permissions %v", got)
	}
	if name, missing := roles.Missing([]string{"admin", "gone"}); !missing || name != "gone" {
		t.Errorf("missing is %q", name)
	}
}

// No built-in role but admin manages accounts, roles or keys.
func TestOnlyAdminsManage(t *testing.T) {
	t.Parallel()
	for _, role := range policy.BuiltIn() {
		set, err := permission.NewSet(role.Permissions)
		if err != nil {
			t.Fatal(err)
		}
		for _, action := range []string{"user.manage", "role.manage", "key.manage", "user.read", "key.read", "audit.read"} {
			if set.AllowsEverywhere(action) != (role.Name == policy.RoleAdmin) {
				t.Errorf("%s may %s: %v", role.Name, action, set.AllowsEverywhere(action))
			}
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"a": true, "Ada.Lovelace+x@example.com": true, "0-_": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false,
		"": false, ".a": false, "@": false, "-a": false, "a b": false, "ä": false, "a/b": false, "a\x00": false, "a\n": false,
	} {
		if policy.ValidName(name) != want {
			t.Errorf("%q is a name: %v", name, !want)
		}
	}
	for name, want := range map[string]bool{"ops-2": true, "2ops": true, "": false, "-a": false, "Ops": false, "a.b": false} {
		if policy.ValidRoleName(name) != want {
			t.Errorf("%q is a role's name: %v", name, !want)
		}
	}
}

func TestBeyond(t *testing.T) {
	t.Parallel()
	have, err := permission.NewSet([]string{"user.*", "instance.*:orders/*"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		give    []string
		missing string
	}{
		{nil, ""},
		{[]string{"user.manage", "instance.read:orders/refund"}, ""},
		{[]string{"user.read", "*"}, "*"},
		{[]string{"instance.read"}, "instance.read"},
	} {
		missing, ok, err := policy.Beyond(have, c.give)
		if err != nil || missing != c.missing || ok != (c.missing == "") {
			t.Errorf("%v: %q, %v, %v", c.give, missing, ok, err)
		}
	}
	if _, ok, err := policy.Beyond(have, []string{"no permission"}); ok || err == nil {
		t.Error("what is no permission may be given")
	}
}

// AUT-2: idle and absolute expiry, whichever is first.
func TestExpiry(t *testing.T) {
	t.Parallel()
	rules := policy.Sessions{Idle: 12 * time.Hour, Lifetime: 7 * 24 * time.Hour}
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	expires := rules.Expires(t0)
	if end := rules.End(t0, expires); !end.Equal(t0.Add(12 * time.Hour)) {
		t.Errorf("an idle session ends at %v", end)
	}
	if end := rules.End(expires.Add(-time.Hour), expires); !end.Equal(expires) {
		t.Errorf("a used session ends at %v", end)
	}
	for at, want := range map[time.Duration]bool{-1: false, 0: true, 1: true} {
		if policy.Over(expires, expires.Add(at)) != want {
			t.Errorf("%v after its end it is over: %v", at, !want)
		}
	}
	if policy.Over(time.Time{}, expires) {
		t.Error("what never ends is over")
	}
	if policy.Stale(t0, t0.Add(policy.TouchEvery-1)) || !policy.Stale(t0, t0.Add(policy.TouchEvery)) {
		t.Error("a use is written once a minute")
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	limit := policy.Limit{Burst: 3, Every: 10 * time.Second}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var full time.Time
	take := func() (wait time.Duration) {
		full, wait = limit.Take(full, now)
		return wait
	}
	for i := range 3 {
		if wait := take(); wait > 0 {
			t.Fatalf("try %d waits %v", i, wait)
		}
	}
	// A refused try costs nothing: hammering does not put off the time at which one is allowed.
	for range 1000 {
		if wait := take(); wait != 10*time.Second {
			t.Fatalf("waits %v", wait)
		}
	}
	now = now.Add(9 * time.Second)
	if wait := take(); wait != time.Second {
		t.Errorf("waits %v", wait)
	}
	now = now.Add(time.Second)
	if wait := take(); wait > 0 {
		t.Errorf("waits %v", wait)
	}
	now = now.Add(time.Hour)
	for i := range 4 {
		if wait := take(); (wait > 0) != (i == 3) {
			t.Errorf("after an hour, try %d waits %v", i, wait)
		}
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"10.1.2.3": "10.1.2.3", "10.1.2.3:99": "10.1.2.3", "::ffff:10.1.2.3": "10.1.2.3", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64",
		"[2001:db8:1:2::1]:443": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64", "": "unknown", "example.com": "unknown",
	} {
		if got := policy.Origin(address); got != want {
			t.Errorf("%q comes from %q, want %q", address, got, want)
		}
	}
}
