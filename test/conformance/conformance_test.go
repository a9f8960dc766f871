package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/internal/testcluster"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/wiggletest"
)

// configuration is what scenarios run on.
type configuration struct {
	name string
	// server gives a scenario its server.
	server func(t *testing.T) Server
}

// memoryServer is a test server of a scenario's own: it may move the clock.
type memoryServer struct {
	*wiggletest.Server
	clients Clients
}

func (m *memoryServer) Clients() Clients { return m.clients }
func (m *memoryServer) Pass()            { m.Skip() }

// sharedServer is a cluster on PostgreSQL that scenarios share.
type sharedServer struct{ clients Clients }

func (s *sharedServer) Clients() Clients { return s.clients }
func (s *sharedServer) Pass()            {}

func memory(t *testing.T) Server {
	t.Helper()
	srv := wiggletest.New(t)
	return &memoryServer{Server: srv, clients: clientsOf(t, srv.URL(), rpc.ClientConfig{DialContext: srv.DialContext})}
}

// onPostgres starts a cluster of n shards for all scenarios of a configuration.
func onPostgres(t *testing.T, n, processes int, configure func(*instances.Config)) func(*testing.T) Server {
	t.Helper()
	urls := make([]string, n)
	for i := range urls {
		urls[i] = pgtest.NewDatabase(t)
	}
	cluster, err := testcluster.Start(testcluster.Config{DatabaseURLs: urls, Processes: processes, Configure: configure})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Errorf("stop the cluster: %v", err)
		}
	})
	var server Server = &sharedServer{clients: clientsOf(t, cluster.URL(), rpc.ClientConfig{DialContext: cluster.Network().DialContext})}
	ready := func(t *testing.T) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := cluster.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return func(t *testing.T) Server {
		t.Helper()
		ready(t)
		return server
	}
}

// parallel is how many scenarios run at a time unless -parallel says otherwise. Most
// of a scenario's time on PostgreSQL is waiting: for a commit, a lease, a sleep.
const parallel = "24"

// gcPercent lets the heap grow further than usual before it is collected.
const gcPercent = 400

// complete counts the runs of the suite in which every scenario passed everywhere.
var complete, played atomic.Int64 //nolint:gochecknoglobals // told by TestMain, which nothing else can reach

// TestMain says at the very end whether everything has passed.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	// Hundreds of short-lived servers and large payloads: memory is cheaper here than time.
	debug.SetGCPercent(gcPercent)
	code := pgtest.Run(m)
	if n := complete.Load(); code == 0 && n > 0 {
		scenarios := int64(len(Scenarios()))
		_, _ = fmt.Fprintf(os.Stdout, "conformance: %d scenarios, %d configurations, all passed\n", scenarios, played.Load()/n/scenarios)
	}
	os.Exit(code)
}

// TestConformance plays every scenario on every configuration (SHD-38). With the race detector, which makes it three times as
// slow, it leaves out those in which less happens at a time than in the others; `make conformance` plays them.
func TestConformance(t *testing.T) {
	configurations := []configuration{
		{"memory", memory},
		{"two shards, two processes", onPostgres(t, 2, 2, nil)},
	}
	if !underRace {
		configurations = append(configurations,
			configuration{"one shard", onPostgres(t, 1, 1, nil)},
			configuration{"two shards", onPostgres(t, 2, 1, nil)},
		)
	}
	all := Scenarios()
	var passed atomic.Int64
	begun := time.Now()
	// The closing line comes after the parallel runs, which the group waits for.
	ok := t.Run("scenarios", func(t *testing.T) {
		for _, c := range configurations {
			for _, s := range all {
				t.Run(c.name+"/"+s.Name, func(t *testing.T) {
					t.Parallel()
					Play(t, c.server(t), s)
					passed.Add(1)
				})
			}
		}
	})
	t.Logf("%d runs in %s", passed.Load(), time.Since(begun).Round(time.Millisecond))
	if want := int64(len(all) * len(configurations)); ok && passed.Load() == want {
		complete.Add(1)
		played.Add(want)
	}
}

// TestScenariosAreNamed holds the list itself: names are unique, and each says what
// it covers.
func TestScenariosAreNamed(t *testing.T) {
	t.Parallel()
	const least = 70
	seen := map[string]bool{}
	for _, s := range Scenarios() {
		if s.Name == "" || s.Covers == "" || seen[s.Name] {
			t.Errorf("scenario %q covers %q; known before: %t", s.Name, s.Covers, seen[s.Name])
		}
		seen[s.Name] = true
	}
	if len(seen) < least {
		t.Errorf("%d scenarios, want %d", len(seen), least)
	}
}

func clientsOf(t *testing.T, url string, cfg rpc.ClientConfig) Clients {
	t.Helper()
	c, err := NewClients(url, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
