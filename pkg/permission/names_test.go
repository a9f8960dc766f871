package permission_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		have            []string
		exact, prefixes []string
		all             bool
	}{
		{have: nil},
		{have: []string{"instance.read"}, all: true},
		{have: []string{"instance.*:orders/*"}, all: true},
		{have: []string{"instance.read:ord*"}, all: true},
		{have: []string{"instance.read:mail/*", "instance.start:orders/*"}},
		{have: []string{"instance.read:orders/b", "*:orders/a", "instance.read:*/b"}, exact: []string{"a", "b"}},
		{
			have:  []string{"instance.read:orders/re*", "instance.read:orders/refund", "instance.read:orders/ref*", "instance.read:orders/pay"},
			exact: []string{"pay"}, prefixes: []string{"re"},
		},
		{have: []string{"instance.read:orders/a*", "instance.read:orders/b*", "instance.read:orders/ab*"}, prefixes: []string{"a", "b"}},
	} {
		n := set(t, tc.have...).Names("instance.read", "orders")
		if n.All() != tc.all {
			t.Errorf("%q: all is %v", tc.have, n.All())
			continue
		}
		if !tc.all && (!slices.Equal(n.Exact, tc.exact) || !slices.Equal(n.Prefixes, tc.prefixes)) {
			t.Errorf("%q: %q and what begins with %q, want %q and %q", tc.have, n.Exact, n.Prefixes, tc.exact, tc.prefixes)
		}
	}
}

// Names hold what the set allows, whatever the permissions are.
func TestNamesAreWhatIsAllowed(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	word := func(open bool) string {
		text := ""
		for range 1 + r.IntN(3) {
			text += string(rune('a' + r.IntN(2)))
		}
		if open && r.IntN(2) == 0 {
			text = text[:r.IntN(len(text)+1)] + "*"
		}
		return text
	}
	for range 2000 {
		var have []string
		for range r.IntN(6) {
			have = append(have, fmt.Sprintf("instance.read:%s/%s", word(true), word(true)))
		}
		s := set(t, have...)
		for range 10 {
			namespace, name := word(false), word(false)
			if got, want := s.Names("instance.read", namespace).Match(name), s.Allows("instance.read", namespace, name); got != want {
				t.Fatalf("%q in %s of %q: %v, want %v", name, namespace, have, got, want)
			}
		}
	}
}
