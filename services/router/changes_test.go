package router

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/faults"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/principals"
)

// oneKey is an auth service that knows one key until it is revoked, and never tells who asks what changed.
type oneKey struct{ revoked atomic.Bool }

func (k *oneKey) Authenticate(
	context.Context, *wiggleinternalv1.AuthenticateRequest,
) (*wiggleinternalv1.AuthenticateResponse, error) {
	if k.revoked.Load() {
		return nil, faults.Unauthenticated("revoked")
	}
	return &wiggleinternalv1.AuthenticateResponse{Revision: 1, Principal: &wiggleinternalv1.Principal{
		Kind: wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_KEY, Name: "ci", CredentialId: "ci", Permissions: []string{"*"},
	}}, nil
}

func (*oneKey) ListChanges(context.Context, *wiggleinternalv1.ListChangesRequest) (*wiggleinternalv1.ListChangesResponse, error) {
	return nil, faults.Unavailable(time.Second, "not by this way")
}

// AUT-5: what NATS tells of a key counts, also where no auth process is asked what changed.
func TestChangesByNATS(t *testing.T) {
	t.Parallel()
	nats, err := devstack.StartNATS(devstack.NATSConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Stop)
	source, forgotten := &oneKey{}, make(chan struct{}, 1)
	known, err := principals.New(principals.Config{
		TTL: time.Hour, Grace: time.Hour, Changed: func(principals.Change) {
			select {
			case forgotten <- struct{}{}:
			default:
			}
		},
	}, source, slog.New(slog.DiscardHandler), noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	heard := make(chan error, 1)
	s := &security{known: known}
	r := &Router{cfg: Config{NATS: bus.Config{URLs: []string{nats.URL()}}}, logger: slog.New(slog.DiscardHandler)}
	go func() { heard <- s.listen(ctx, r) }()

	key := principals.Credential{Kind: principals.Token, Text: "wgk_ci_0123456789"}
	if _, err := known.Lookup(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	source.revoked.Store(true)
	if _, err := known.Lookup(t.Context(), key); err != nil {
		t.Fatalf("nobody has told of it yet: %v", err)
	}
	announce(t, nats.URL(), forgotten)
	if _, err := known.Lookup(t.Context(), key); !errors.Is(err, faults.ErrUnauthenticated) {
		t.Errorf("a key that is revoked, as NATS has told: %v", err)
	}
	stop()
	if err := <-heard; err != nil {
		t.Error(err)
	}
}

// announce tells as the auth service does, until it is heard.
func announce(t *testing.T, url string, heard <-chan struct{}) {
	t.Helper()
	b, err := bus.Open(bus.Config{URLs: []string{url}, Name: "auth"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	change, err := proto.Marshal(&wiggleinternalv1.ListChangesResponse{Revision: 2, CredentialIds: []string{"ci"}})
	if err != nil {
		t.Fatal(err)
	}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	deadline := time.After(30 * time.Second)
	for {
		for _, data := range [][]byte{[]byte("nonsense"), change} {
			if err := b.Announce(subjectChanges, data); err != nil && !errors.Is(err, bus.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		select {
		case <-heard:
			return
		case <-again.C:
		case <-deadline:
			t.Fatal("what was told was not heard in 30 s")
		}
	}
}
