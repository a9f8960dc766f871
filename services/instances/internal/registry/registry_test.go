package registry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/registry"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/memstore"
)

// flow is a definition whose one step has a name.
func flow(workflow, step string) *wigglev1.Definition {
	return &wigglev1.Definition{Name: workflow, Start: step, Nodes: map[string]*wigglev1.Node{
		step:  {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: "end"}}},
		"end": {Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}},
	}}
}

func register(t *testing.T, home store.Definitions, d *wigglev1.Definition) (store.Definition, bool) {
	t.Helper()
	got, created, err := registry.Register(t.Context(), home, definition.DefaultLimits(), "default", d)
	if err != nil {
		t.Fatal(err)
	}
	return got, created
}

// TestVersions: the same graph keeps its version, another gets the next, a declared
// version that holds another graph is refused with the difference (WF-10, WF-11).
func TestVersions(t *testing.T) {
	t.Parallel()
	home := memstore.New(time.Now)
	for i, step := range []struct {
		d       *wigglev1.Definition
		version int32
		created bool
	}{
		{flow("a", "x"), 1, true},
		{flow("a", "x"), 1, false},
		{flow("a", "y"), 2, true},
		{flow("a", "x"), 3, true},
		{flow("b", "x"), 1, true},
	} {
		if got, created := register(t, home, step.d); got.Version != step.version || created != step.created {
			t.Fatalf("registration %d: version %d, created %t", i, got.Version, created)
		}
	}
	declared := proto.CloneOf(flow("a", "z"))
	declared.Version = 2
	_, _, err := registry.Register(t.Context(), home, definition.DefaultLimits(), "default", declared)
	if !errors.Is(err, faults.ErrDefinitionConflict) {
		t.Fatalf("another graph under version 2: %v", err)
	}
	if d := faults.FromError(err).ToProto().GetDefinitionConflict().GetDifferences(); len(d) == 0 {
		t.Fatal("the conflict tells no difference")
	}
	if _, _, err := registry.Register(t.Context(), home, definition.DefaultLimits(), "default", &wigglev1.Definition{Name: "bad"}); !errors.Is(err, faults.ErrInvalid) {
		t.Fatalf("an invalid definition: %v", err)
	}
}

// away is a home that can be out of reach.
type away struct {
	store.Definitions
	down bool
}

func (a *away) ListDefinitions(ctx context.Context, q store.DefinitionQuery) ([]store.Definition, error) {
	if a.down {
		return nil, errors.New("home is away")
	}
	return a.Definitions.ListDefinitions(ctx, q)
}

// TestCopyCatchesUp: a copy is brought up before it serves a start, after the
// process started and after its database failed; with home away it goes on with
// what it has (WF-13, ARC-1).
func TestCopyCatchesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		home, shard := &away{Definitions: memstore.New(time.Now)}, memstore.New(time.Now)
		failures := uint64(0)
		c := registry.NewCopy(shard, home, func() uint64 { return failures }, slog.New(slog.DiscardHandler))
		has := func(want int64) {
			t.Helper()
			if got, err := shard.Revision(t.Context()); err != nil || got != want {
				t.Fatalf("the copy is at %d (%v), want %d", got, err, want)
			}
		}
		for i := range 120 { // more than a page
			register(t, home, flow("a", fmt.Sprint("s", i)))
		}
		c.Ensure(t.Context())
		has(120)
		register(t, home, flow("a", "new"))
		c.Ensure(t.Context())
		has(120) // nothing tells that it may be behind: a router will

		failures++
		home.down = true
		<-time.After(2 * time.Second)
		c.Ensure(t.Context())
		has(120)
		home.down = false
		<-time.After(2 * time.Second)
		c.Ensure(t.Context())
		has(121)

		register(t, home, flow("a", "newer"))
		if c.Refresh(t.Context()) {
			t.Fatal("looked at home twice in a second")
		}
		<-time.After(2 * time.Second)
		if !c.Refresh(t.Context()) {
			t.Fatal("did not look at home")
		}
		has(122)
	})
}

// TestPutLeavesNoGap: a router that brings only the newest does not hide what is
// missing before it.
func TestPutLeavesNoGap(t *testing.T) {
	t.Parallel()
	home, shard := memstore.New(time.Now), memstore.New(time.Now)
	c := registry.NewCopy(shard, home, func() uint64 { return 0 }, slog.New(slog.DiscardHandler))
	for i := range 5 {
		register(t, home, flow("a", fmt.Sprint("s", i)))
	}
	newest, _ := register(t, home, flow("a", "new"))
	for range 2 {
		if revision, err := c.Put(t.Context(), []store.Definition{newest}); err != nil || revision != 6 {
			t.Fatalf("put: revision %d, %v", revision, err)
		}
	}
	ds, err := shard.ListDefinitions(t.Context(), store.DefinitionQuery{Limit: 10})
	if err != nil || len(ds) != 6 {
		t.Fatalf("the copy has %d definitions, %v", len(ds), err)
	}
}

// TestCatalogue lists versions by name, newest first, and goes on where it was.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	home := memstore.New(time.Now)
	c := registry.NewCatalogue()
	for _, d := range []*wigglev1.Definition{flow("b", "x"), flow("a", "x"), flow("b", "y"), flow("c", "x")} {
		register(t, home, d)
	}
	var got []string
	name, version := "", int32(0)
	for {
		page, err := c.List(t.Context(), home, registry.Listing{Namespace: "default", After: name, AfterVersion: version, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page {
			got = append(got, fmt.Sprintf("%s%d", s.Workflow, s.Version))
			name, version = s.Workflow, s.Version
		}
		if len(page) < 2 {
			break
		}
		register(t, home, flow("a", fmt.Sprint("later", len(got)))) // before the page that follows
	}
	if want := "[a1 b2 b1 c1]"; fmt.Sprint(got) != want {
		t.Fatalf("listed %v, want %s", got, want)
	}
}
