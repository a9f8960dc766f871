package permission_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/permission"
)

func set(t *testing.T, texts ...string) permission.Set {
	t.Helper()
	s, err := permission.NewSet(texts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// AUT-3: an action with an optional scope of namespace, workflow or queue.
func TestAllows(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		permissions             string
		action, namespace, name string
		want                    bool
	}{
		{"instance.start", "instance.start", "orders", "refund", true},
		{"instance.start", "instance.cancel", "orders", "refund", false},
		{"instance.start:orders/*", "instance.start", "orders", "refund", true},
		{"instance.start:orders", "instance.start", "orders", "refund", true},
		{"instance.start:orders/*", "instance.start", "orders2", "refund", false},
		{"instance.start:orders*/refund", "instance.start", "orders2", "refund", true},
		{"instance.start:orders*/refund", "instance.start", "orders2", "refund2", false},
		{"task.poll:*/gpu", "task.poll", "any", "gpu", true},
		{"task.poll:*/gpu", "task.poll", "any", "cpu", false},
		{"instance.*:orders/*", "instance.cancel", "orders", "x", true},
		{"instance.*:orders/*", "workflow.read", "orders", "x", false},
		{"*", "user.manage", "", "", true},
		{"", "user.manage", "", "", false},
	} {
		if got := set(t, strings.Fields(tc.permissions)...).Allows(tc.action, tc.namespace, tc.name); got != tc.want {
			t.Errorf("%q allows %s on %s/%s: %v", tc.permissions, tc.action, tc.namespace, tc.name, got)
		}
	}
}

func TestAllowsEverywhere(t *testing.T) {
	t.Parallel()
	if set(t, "user.*:orders/*").AllowsEverywhere("user.manage") {
		t.Error("a limited permission allows what no scope limits")
	}
	if !set(t, "user.*").AllowsEverywhere("user.manage") {
		t.Error("user.* does not allow user.manage")
	}
}

func TestScopes(t *testing.T) {
	t.Parallel()
	s := set(t, "instance.read:orders/*", "instance.*:shop/a*", "instance.start:x/*", "instance.read:orders/*")
	got := s.Scopes("instance.read")
	if !slices.Equal(got, []permission.Scope{{Namespace: "orders", Name: "*"}, {Namespace: "shop", Name: "a*"}}) {
		t.Errorf("scopes: %v", got)
	}
	if got := permission.Everything().Scopes("instance.read"); !slices.Equal(got, []permission.Scope{permission.Everywhere()}) {
		t.Errorf("scopes of everything: %v", got)
	}
}

func TestCovers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		have, give string
		missing    string
	}{
		{"*", "user.manage instance.start:a/b", ""},
		{"instance.*:orders/*", "instance.start:orders/refund", ""},
		{"instance.*:orders/*", "instance.*:orders/re*", ""},
		{"instance.start:orders/*", "instance.*:orders/*", "instance.*:orders/*"},
		{"instance.start:orders/*", "instance.start", "instance.start"},
		{"instance.start:orders/re*", "instance.start:orders/r*", "instance.start:orders/r*"},
		{"instance.start:orders/re*", "instance.start:orders/re", ""},
		{"", "instance.start", "instance.start"},
	} {
		missing, ok := set(t, strings.Fields(tc.have)...).Covers(set(t, strings.Fields(tc.give)...))
		if ok != (tc.missing == "") || (!ok && missing.String() != tc.missing) {
			t.Errorf("%q covers %q: %v, missing %s", tc.have, tc.give, ok, missing)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "instance", "instance.", ".start", "Instance.start", "a.b.c", "instance.st*rt", "instance.start:", "instance.start:/x",
		"instance.start:a/", "instance.start:a/b/c", "instance.start:a*b/c", "instance.start:a:b", "a.b:" + strings.Repeat("x", 400),
	} {
		if p, err := permission.Parse(text); err == nil {
			t.Errorf("%q was read as %s", text, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"*", "instance.start", "instance.*:orders/re*", "task.poll:*/gpu", "a.b:c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := permission.Parse(text)
		if err != nil {
			return
		}
		again, err := permission.Parse(p.String())
		if err != nil || again != p {
			t.Errorf("%q was read as %s, and that as %s: %v", text, p, again, err)
		}
	})
}

func TestAllowsAllocatesNothing(t *testing.T) {
	s := set(t, "instance.start:orders/*", "instance.read", "task.poll:*/gpu")
	if n := testing.AllocsPerRun(100, func() { s.Allows("task.poll", "orders", "gpu") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
