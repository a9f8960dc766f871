package leader_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/leader"
	"github.com/wiggle-run/wiggle/services/leader/internal/store/storetest"
)

const (
	// envChild makes this binary a leader process.
	envChild   = "WIGGLE_TEST_LEADER"
	serviceKey = "WIGGLE_SERVICE_KEY=key-of-this-cluster-key-of-this-cluster"
)

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		ctx, stop := lifecycle.WithSignals(context.Background())
		defer stop()
		if err := leader.Main(ctx, os.Environ()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1) //nolint:gocritic // nothing is left to stop
		}
		return
	}
	pgtest.Main(m)
}

const cluster = "c1"

// shard is one shard of a test's cluster.
type shard struct {
	url   string
	state topology.State
	roles topology.Roles
}

// instancesShard is a database as the instances service leaves it.
func instancesShard(t *testing.T, id int) string {
	t.Helper()
	url := pgtest.NewDatabaseFrom(t, storetest.Key, storetest.Setup)
	if _, err := postgres.Claim(t.Context(), pgtest.OpenPool(t, url), id, cluster); err != nil {
		t.Fatal(err)
	}
	return url
}

func describe(t *testing.T, shards ...shard) *topology.Topology {
	t.Helper()
	doc := topology.Document{Generations: []topology.DocumentGeneration{
		{ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{}},
	}}
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
		if s.state == topology.StateActive && s.roles.Has(topology.RoleInstances) {
			doc.Generations[0].Weights[i] = 1
		}
		doc.Shards = append(doc.Shards, topology.DocumentShard{
			ID: i, State: s.state, Roles: s.roles, Primary: &topology.DocumentMember{URL: topology.NewCredential(s.url)},
		})
	}
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	topo, err := topology.Parse(text, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// running is a leader process in this one.
type running struct {
	*leader.Service
	address string
	stop    func() error
}

func start(t *testing.T, cfg leader.Config) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener = l
	s, err := leader.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r := &running{Service: s, address: l.Addr().String(), stop: sync.OnceValue(func() error { cancel(); return <-ended })}
	t.Cleanup(func() { _ = r.stop() })
	return r
}

func (r *running) leads() bool {
	_, ok := r.Term()
	return ok
}

// readyz asks whether the process is ready.
func (r *running) readyz() (int, string) {
	rec := httptest.NewRecorder()
	r.Handler().Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	return rec.Code, rec.Body.String()
}

// until tries again and again until something is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	deadline := time.After(30 * time.Second)
	for !is() {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("%s: not so in 30 s", what)
		}
	}
}

// heartbeat reads the heartbeat of a database; zeros if there is none.
func heartbeat(t *testing.T, pool *postgres.Pool) (beat, term int64) {
	t.Helper()
	err := pool.QueryRow(t.Context(), "select beat, term from wiggle_heartbeat").Scan(&beat, &term)
	if err != nil && !postgres.IsUndefinedTable(err) {
		t.Fatal(err)
	}
	return beat, term
}

// TestLeads: one leads, with heartbeats on every shard that is not retired, whatever its role; when it stops the other
// takes over at once (REP-1, ARC-3).
func TestLeads(t *testing.T) {
	t.Parallel()
	urls := []string{instancesShard(t, 0), instancesShard(t, 1), pgtest.NewDatabase(t), pgtest.NewDatabase(t)}
	topo := describe(t, shard{url: urls[0]}, shard{url: urls[1], state: topology.StateDraining},
		shard{url: urls[2], roles: topology.Roles{topology.RoleSearch}},
		shard{url: urls[3], state: topology.StateRetired})
	pools := make([]*postgres.Pool, len(urls))
	for i, url := range urls {
		pools[i] = pgtest.OpenPool(t, url)
	}
	first := start(t, leader.Config{Topology: topo})
	until(t, "the first leads", first.leads)
	second := start(t, leader.Config{Topology: topo})
	until(t, "the second is ready", func() bool { code, _ := second.readyz(); return code == 200 })
	until(t, "three heartbeats on every shard", func() bool {
		for _, pool := range pools[:3] {
			if beat, _ := heartbeat(t, pool); beat < 3 {
				return false
			}
		}
		return true
	})
	if id, err := postgres.VerifyClaim(t.Context(), pools[2], 2, cluster); err != nil {
		t.Errorf("the search shard is claimed for %s, %v", id, err)
	}
	if _, err := postgres.VerifyClaim(t.Context(), pools[3], 3, ""); !errors.Is(err, postgres.ErrUnclaimed) {
		t.Errorf("the retired shard: %v", err)
	}
	term, _ := first.Term()
	if second.leads() {
		t.Error("two lead")
	}
	if err := first.stop(); err != nil {
		t.Error(err)
	}
	stopped := time.Now()
	until(t, "the second leads", second.leads)
	if took := time.Since(stopped); took > 2*time.Second {
		t.Errorf("took over after %v", took)
	}
	if next, _ := second.Term(); next != term+1 {
		t.Errorf("term %d follows %d", next, term)
	}
	until(t, "its term is on every shard", func() bool {
		for _, pool := range pools[:3] {
			if _, on := heartbeat(t, pool); on != term+1 {
				return false
			}
		}
		return true
	})
}

// TestADeadShardHoldsNoOtherBack: heartbeats and relay go on for the others, and for a shard from when it comes.
func TestADeadShardHoldsNoOtherBack(t *testing.T) {
	t.Parallel()
	n, err := devstack.StartNATS(devstack.NATSConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	home, late := instancesShard(t, 0), pgtest.NewDatabase(t)
	topo := describe(t, shard{url: home}, shard{url: "postgres://127.0.0.1:1/nowhere"}, shard{url: late})
	s := start(t, leader.Config{Topology: topo, NATS: bus.Config{URLs: []string{n.URL()}}})
	until(t, "it leads", s.leads)
	pool, latePool := pgtest.OpenPool(t, home), pgtest.OpenPool(t, late)
	if err := storetest.Insert(t.Context(), pool, [16]byte{1}, 0, 5); err != nil {
		t.Fatal(err)
	}
	b, err := bus.Open(bus.Config{URLs: []string{n.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	messages := func(want uint64) func() bool {
		return func() bool { s, err := b.EnsureStream(t.Context()); return err == nil && s.Messages == want }
	}
	until(t, "home's events are relayed", messages(5))
	until(t, "home's heart beats", func() bool { beat, _ := heartbeat(t, pool); return beat > 2 })
	if code, body := s.readyz(); code != 200 {
		t.Errorf("not ready: %s", body)
	}
	if err := storetest.Setup(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Claim(t.Context(), latePool, 2, cluster); err != nil {
		t.Fatal(err)
	}
	if err := storetest.Insert(t.Context(), latePool, [16]byte{2}, 0, 3); err != nil {
		t.Fatal(err)
	}
	until(t, "the late shard's heart beats", func() bool { beat, _ := heartbeat(t, latePool); return beat > 0 })
	until(t, "its events are relayed", messages(8))
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

// TestWaitsForHome: a leader waits for home to be claimed, says so, and migrates nothing of the instances service.
func TestWaitsForHome(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	s := start(t, leader.Config{Topology: describe(t, shard{url: url})})
	until(t, "it says what is missing", func() bool {
		code, body := s.readyz()
		return code == 503 && strings.Contains(body, "waiting for the instances service")
	})
	if err := storetest.Setup(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Claim(t.Context(), pgtest.OpenPool(t, url), 0, ""); err != nil {
		t.Fatal(err)
	}
	until(t, "it leads", s.leads)
	if code, body := s.readyz(); code != 200 {
		t.Errorf("not ready: %s", body)
	}
}

// TestRefusesAnothersHome: a home that belongs to another shard ends the process (SHD-13).
func TestRefusesAnothersHome(t *testing.T) {
	t.Parallel()
	s, err := leader.New(leader.Config{Topology: describe(t, shard{url: instancesShard(t, 4)}), Listener: listen(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "belongs to shard 4") {
		t.Errorf("got %v", err)
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// child starts a leader process of its own.
func child(t *testing.T, url string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{
		envChild + "=1", serviceKey, "WIGGLE_DATABASE_URL=" + url, "WIGGLE_LEADER_ADDR=127.0.0.1:0", "WIGGLE_LOG_LEVEL=error",
		"PATH=" + os.Getenv("PATH"),
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// besideAChild has a leader process of its own lead, and another stand by in this one.
func besideAChild(t *testing.T) (cmd *exec.Cmd, standby *running, pool *postgres.Pool) {
	t.Helper()
	url := instancesShard(t, 0)
	pool = pgtest.OpenPool(t, url)
	cmd = child(t, url)
	until(t, "the child leads", func() bool { beat, _ := heartbeat(t, pool); return beat > 0 })
	standby = start(t, leader.Config{Topology: describe(t, shard{url: url})})
	until(t, "the other stands by", func() bool { code, _ := standby.readyz(); return code == 200 })
	return cmd, standby, pool
}

// TestKilled: a leader that is killed is replaced within five seconds.
func TestKilled(t *testing.T) {
	t.Parallel()
	cmd, standby, pool := besideAChild(t)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	until(t, "the other leads", standby.leads)
	if took := time.Since(killed); took > 5*time.Second {
		t.Errorf("took over after %v", took)
	}
	until(t, "its heart beats", func() bool { _, term := heartbeat(t, pool); return term == 2 })
}

// TestHeldUp: a leader that is stopped for longer than its lease and goes on then has been replaced: it writes nothing more
// under its term, and stands by.
func TestHeldUp(t *testing.T) {
	t.Parallel()
	cmd, standby, pool := besideAChild(t)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "the other leads", standby.leads)
	until(t, "its heart beats", func() bool { _, term := heartbeat(t, pool); return term == 2 })
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	beat, _ := heartbeat(t, pool)
	until(t, "three more beats, all under the new term", func() bool {
		now, term := heartbeat(t, pool)
		if term != 2 || !standby.leads() {
			t.Fatalf("the heart beats under term %d, the other leads: %v", term, standby.leads())
		}
		return now >= beat+3
	})
	if err := standby.stop(); err != nil {
		t.Error(err)
	}
	until(t, "the first leads again", func() bool { _, term := heartbeat(t, pool); return term == 3 })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	var holder string
	if err := pool.QueryRow(t.Context(), "select holder from leader_lease").Scan(&holder); err != nil || holder != "" {
		t.Errorf("after an orderly stop the lease is %q's, %v", holder, err)
	}
}

func TestMainRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	database := "WIGGLE_DATABASE_URL=postgres://127.0.0.1:1/w"
	for want, environ := range map[string][]string{
		`WIGGLE_ROUTER_URLS: names "a", which is not an http or https`: {database, "WIGGLE_ROUTER_URLS=a"},
		"did you mean WIGGLE_LEADER_ADDR?":                             {database, "WIGGLE_LEADER_ADR=x"},
		"WIGGLE_NATS_URLS":                                             {database, "WIGGLE_NATS_URLS=http://a"},
		"WIGGLE_DATABASE_URL: is not set":                              nil,
		"WIGGLE_LEADER_ADDR: listen":                                   {database, serviceKey, "WIGGLE_LEADER_ADDR=nowhere"},
	} {
		if err := leader.Main(t.Context(), append(environ, "WIGGLE_LOG_LEVEL=error")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
