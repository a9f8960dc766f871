package identity_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/permission"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
)

func TestPrincipalTravelsInAHeader(t *testing.T) {
	t.Parallel()
	message := &wiggleinternalv1.Principal{
		Kind: wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_KEY, Name: "ci", CredentialId: "k1", Permissions: []string{"instance.read:orders/*"},
	}
	p, err := identity.New(message)
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{}
	p.Write(header)
	got, err := identity.Read(header)
	if err != nil || !proto.Equal(got.Message(), message) || got.String() != "key/ci" {
		t.Fatalf("read %v: %v", got, err)
	}
	ctx := identity.With(t.Context(), got)
	if scopes := identity.Scopes(ctx, "instance.read"); len(scopes) != 1 || scopes[0].String() != "orders/*" {
		t.Errorf("scopes: %v", scopes)
	}
	if scopes := identity.Scopes(ctx, "instance.start"); len(scopes) != 0 {
		t.Errorf("scopes of what it may not do: %v", scopes)
	}
}

func TestNoPrincipalIsNotLimited(t *testing.T) {
	t.Parallel()
	p, err := identity.Read(http.Header{})
	if p != nil || err != nil {
		t.Fatalf("read %v: %v", p, err)
	}
	if scopes := identity.Scopes(t.Context(), "instance.read"); len(scopes) != 1 || scopes[0] != permission.Everywhere() {
		t.Errorf("scopes: %v", scopes)
	}
}

// A header that cannot be read is an error: taking it for none would lift the limits.
func TestUnreadableHeaderIsRefused(t *testing.T) {
	t.Parallel()
	bad, err := proto.Marshal(&wiggleinternalv1.Principal{Permissions: []string{"instance.read:orders/*"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"!", "AAAA", string(bad)} {
		if p, err := identity.Read(http.Header{identity.Header: {text}}); err == nil {
			t.Errorf("%q was read as %v", text, p)
		}
	}
	if !identity.Service().Permissions().AllowsEverywhere("user.manage") {
		t.Error("a service may not do everything")
	}
}

func limited(t *testing.T, permissions ...string) context.Context {
	t.Helper()
	p, err := identity.New(&wiggleinternalv1.Principal{
		Kind: wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_USER, Name: "alice", Permissions: permissions,
	})
	if err != nil {
		t.Fatal(err)
	}
	return identity.With(t.Context(), p)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	ctx := limited(t, "instance.read:orders/re*")
	if err := identity.Check(ctx, "instance.read", "orders", "refund"); err != nil {
		t.Error(err)
	}
	err := identity.Check(ctx, "instance.read", "orders", "pay")
	if !errors.Is(err, faults.ErrPermissionMissing) || !strings.Contains(err.Error(), "user/alice has no permission instance.read:orders/pay") {
		t.Errorf("what it lacks: %v", err)
	}
	if err := identity.Check(t.Context(), "instance.read", "orders", "pay"); err != nil {
		t.Errorf("who is not limited: %v", err)
	}
	if n := identity.Within(ctx, "instance.read", "orders"); n.All() || !n.Match("refund") || n.Match("pay") {
		t.Errorf("within orders: %v", n)
	}
}

// Whoever is not limited pays a look into the context.
func TestNoPrincipalCostsNothing(t *testing.T) {
	ctx := t.Context()
	n := testing.AllocsPerRun(100, func() {
		if !identity.Within(ctx, "instance.read", "orders").All() || identity.Check(ctx, "instance.read", "orders", "pay") != nil {
			t.Error("limited")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkWithin(b *testing.B) {
	b.Run("no principal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			identity.Within(b.Context(), "instance.read", "orders")
		}
	})
}
