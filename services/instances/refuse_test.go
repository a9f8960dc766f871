package instances_test

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/instances"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// shard describes one shard of a test's topology.
type shard struct {
	id    int
	url   string
	state topology.State
	roles topology.Roles
}

func describe(t *testing.T, shards ...shard) *topology.Topology {
	t.Helper()
	doc := topology.Document{Generations: []topology.DocumentGeneration{{ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{}}}}
	for i, s := range shards {
		if s.state == "" {
			s.state = topology.StateActive
		}
		if s.roles == nil {
			s.roles = topology.Roles{topology.RoleInstances}
		}
		if i == 0 {
			s.roles = append(s.roles, topology.RoleHome, topology.RoleAuth)
		}
		if s.state == topology.StateActive {
			doc.Generations[0].Weights[s.id] = 1
		}
		doc.Shards = append(doc.Shards, topology.DocumentShard{
			ID: s.id, State: s.state, Roles: s.roles, Primary: &topology.DocumentMember{URL: topology.NewCredential(s.url)},
		})
	}
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	top, err := topology.Parse(text, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// run runs a process until it is ready, and stops it; or until it ends by itself.
func run(t *testing.T, top *topology.Topology, change ...func(*instances.Config)) error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := instances.Config{Topology: top, Listener: listener}
	for _, c := range change {
		c(&cfg)
	}
	s, err := instances.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if ctx.Err() != nil {
				t.Fatal("the process got neither ready nor refused")
			}
			return err
		case <-tick.C:
		}
		ready := true
		for _, st := range s.Status().GetShards() {
			ready = ready && st.GetReady()
		}
		if ready {
			stop()
			return <-done
		}
	}
}

func refused(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("the process served a topology that it must refuse")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the refusal does not say %q: %v", w, err)
		}
	}
}

// TestRefusals: a process holds its topology against the registry and against what
// the databases say of themselves (SHD-13, SHD-21), and says all that is wrong.
func TestRefusals(t *testing.T) {
	t.Parallel()
	a, b, c := pgtest.NewDatabase(t), pgtest.NewDatabase(t), pgtest.NewDatabase(t)
	if err := run(t, describe(t, shard{id: 0, url: a}, shard{id: 1, url: b}, shard{id: 2, url: c})); err != nil {
		t.Fatal(err)
	}
	if err := run(t, describe(t, shard{id: 0, url: a}, shard{id: 1, url: b}, shard{id: 2, url: c})); err != nil {
		t.Fatalf("the same topology again: %v", err)
	}
	refused(t, run(t, describe(t, shard{id: 0, url: a}, shard{id: 1, url: c}, shard{id: 2, url: b})), "shard 1", "shard 2")
	refused(t, run(t, describe(t, shard{id: 0, url: a})), "shard 1", "shard 2")
	draining := shard{id: 2, url: c, state: topology.StateDraining}
	if err := run(t, describe(t, shard{id: 0, url: a}, shard{id: 1, url: b}, draining)); err != nil {
		t.Fatalf("a shard set draining: %v", err)
	}
	back := describe(t, shard{id: 0, url: a}, shard{id: 1, url: b}, shard{id: 2, url: c})
	refused(t, run(t, back), "shard 2", "draining")
	only1 := func(cfg *instances.Config) { cfg.Shards = []int{1} }
	if err := run(t, describe(t, shard{id: 0, url: a}, shard{id: 1, url: b}, draining), only1); err != nil {
		t.Fatalf("a process without home: %v", err)
	}

	other := pgtest.NewDatabase(t)
	if err := run(t, describe(t, shard{id: 0, url: other})); err != nil {
		t.Fatal(err)
	}
	refused(t, run(t, describe(t, shard{id: 0, url: other}, shard{id: 1, url: b})), "cluster")
}

// TestServedApart: a process that does not serve home opens a new database once
// home's tells the cluster's id.
func TestServedApart(t *testing.T) {
	t.Parallel()
	top := describe(t, shard{id: 0, url: pgtest.NewDatabase(t)}, shard{id: 1, url: pgtest.NewDatabase(t)})
	errs := make(chan error, 2)
	for _, id := range []int{1, 0} {
		go func() { errs <- run(t, top, func(cfg *instances.Config) { cfg.Shards = []int{id} }) }()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// TestVerifyAppliesNothing: WIGGLE_SCHEMA_MODE=verify refuses what has to be
// migrated first (SHD-15).
func TestVerifyAppliesNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	verify := func(cfg *instances.Config) { cfg.SchemaVerify = true }
	refused(t, run(t, describe(t, shard{id: 0, url: url}), verify), "0001_shard.sql")
	if err := run(t, describe(t, shard{id: 0, url: url})); err != nil {
		t.Fatal(err)
	}
	if err := run(t, describe(t, shard{id: 0, url: url}), verify); err != nil {
		t.Fatalf("a schema that is up to date: %v", err)
	}
}

// TestNewerSchema: a process serves a shard whose schema is a newer release's, and refuses one that says that it needs a
// newer process (SHD-15, OPS-4).
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	top := describe(t, shard{id: 0, url: url})
	if err := run(t, top); err != nil {
		t.Fatal(err)
	}
	pool := pgtest.OpenPool(t, url)
	upgrade := func(statements string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), statements); err != nil {
			t.Fatal(err)
		}
	}
	upgrade("alter table tokens add column later text")
	upgrade("insert into wiggle_migrations_instances (version, name, checksum, requires) values (9001, '9001_later.sql', 'x', 0)")
	verify := func(cfg *instances.Config) { cfg.SchemaVerify = true }
	for name, err := range map[string]error{"apply": run(t, top), "verify": run(t, top, verify)} {
		if err != nil {
			t.Errorf("%s: a schema that only has more: %v", name, err)
		}
	}
	upgrade("insert into wiggle_migrations_instances (version, name, checksum, requires) values (9002, '9002_less.sql', 'x', 9001)")
	refused(t, run(t, top), "9002_less.sql", "9001", "run a newer release")
	refused(t, run(t, top, verify), "9002_less.sql", "run a newer release")
}
