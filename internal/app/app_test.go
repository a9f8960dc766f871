package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/internal/app"
	"github.com/wiggle-run/wiggle/internal/demo"
	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/topology"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
	"github.com/wiggle-run/wiggle/services/auth"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/leader"
	"github.com/wiggle-run/wiggle/services/router"
	"github.com/wiggle-run/wiggle/services/search"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestEveryProblemAtOnce(t *testing.T) { // OPS-2, SHD-13, SHD-17
	t.Parallel()
	_, err := app.Load([]string{
		"WIGGLE_REGION=eu", "WIGGLE_COORD_TIMEOUT=1", "WIGGLE_LOG_LEVEL=loud", "WIGGLE_ROUTER_ADR=x", "WIGGLE_SCHEMA_MODE=guess",
		`WIGGLE_STORAGE_TOPOLOGY={"generations":[{"id":1,"activeFrom":"2026-10-01T00:00:00Z","weights":{"0":1}}],"shards":[]}`,
		"WIGGLE_SERVER=http://x", "HOME=/x",
	})
	e, ok := errors.AsType[*process.ConfigError](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	var lines []string
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	text := strings.Join(lines, "\n")
	for _, want := range []string{
		"WIGGLE_REGION: ", "WIGGLE_COORD_TIMEOUT: ", `WIGGLE_LOG_LEVEL: is "loud"`, "did you mean WIGGLE_ROUTER_ADDR?",
		`WIGGLE_SCHEMA_MODE: is "guess"; use apply, verify`, "document: has no shards",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is not there once in\n%s", want, text)
		}
	}
	if !strings.HasPrefix(lines[0], "WIGGLE_COORD_TIMEOUT") && !strings.HasPrefix(lines[0], "WIGGLE_REGION") {
		t.Errorf("removed settings do not come first:\n%s", text)
	}
	if strings.Contains(text, "WIGGLE_SERVER") {
		t.Errorf("a name that commands know is refused:\n%s", text)
	}
}

func TestServices(t *testing.T) { // what each is refused for before it starts
	t.Parallel()
	const database, nats = "WIGGLE_DATABASE_URL=postgres://db/wiggle", "WIGGLE_NATS_URLS=nats://nats:4222"
	migrate := func(_ context.Context, environ []string) error {
		_, err := app.LoadMigrate(environ)
		return err
	}
	load := func(_ context.Context, environ []string) error {
		_, err := app.Load(environ)
		return err
	}
	for _, c := range []struct {
		name    string
		run     func(ctx context.Context, environ []string) error
		environ []string
		want    string // a part of the error, empty for none
	}{
		{"all", load, []string{database}, ""},
		{"all", load, []string{database, nats, "WIGGLE_SEARCH_LANGUAGE=simple"}, ""},
		{"all", load, []string{database, "WIGGLE_NATS_URLS=http://a"}, "WIGGLE_NATS_URLS has an entry that is not a nats or tls URL"},
		{"all", load, []string{database, nats, "WIGGLE_SEARCH_LANGUAGE=x y"}, `WIGGLE_SEARCH_LANGUAGE: is "x y"`},
		{"all", app.ServeAll, []string{database, "WIGGLE_ROUTER_ADR=x"}, "did you mean WIGGLE_ROUTER_ADDR?"},
		{"all", app.ServeAll, []string{database, "WIGGLE_INSTANCES_SHARDS=7"}, "names shard 7, which the topology does not list"},
		{"instances", instances.Main, []string{database, "WIGGLE_INSTANCES_SHARDS=zero"}, `has "zero", which is not a whole number`},
		{"instances", instances.Main, []string{database, "WIGGLE_INSTANCES_URL=http://x"}, "did you mean WIGGLE_INSTANCES_URLS?"},
		{"router", router.Main, []string{database}, "WIGGLE_INSTANCES_URLS: is not set"},
		{"router", router.Main, []string{database, "WIGGLE_INSTANCES_ADR=:8430"}, "did you mean WIGGLE_INSTANCES_ADDR?"},
		{"leader", leader.Main, []string{database, "WIGGLE_ROUTER_URLS=a"}, `WIGGLE_ROUTER_URLS: names "a"`},
		{"auth", auth.Main, []string{database, "WIGGLE_AUTH_ADMIN_NAME=root"}, "WIGGLE_AUTH_ADMIN_NAME: is set, but neither"},
		{"all", load, []string{database, "WIGGLE_AUTH_ADMIN_NAME=root"}, "WIGGLE_AUTH_ADMIN_NAME: is set, but neither"},
		{"search", search.Main, []string{database}, "WIGGLE_NATS_URLS: is not set"},
		{"migrate", migrate, []string{database, "WIGGLE_SCHEMA_MODE=verify"}, ""},
		{"migrate", migrate, []string{database, "WIGGLE_ROUTER_ADDR=:8420", "WIGGLE_SERVER=http://x"}, ""},
		{"migrate", migrate, nil, "WIGGLE_DATABASE_URL: is not set"},
	} {
		err := c.run(t.Context(), c.environ)
		if (err == nil) != (c.want == "") || err != nil && strings.Count(err.Error(), c.want) != 1 {
			t.Errorf("%s with %v: %v", c.name, c.environ, err)
		}
	}
}

// TestEveryNameIsInTheTable holds the table by which services accept each other's settings against what they declare.
func TestEveryNameIsInTheTable(t *testing.T) { // OPS-2
	t.Parallel()
	var declared, listed []string
	line := func(name string, by []string) string {
		return name + " is read by " + strings.Join(slices.Sorted(slices.Values(by)), ", ")
	}
	for _, row := range app.Table() {
		declared = append(declared, line(row.Name, row.Sections))
	}
	for _, name := range process.Names() {
		listed = append(listed, line(name.Name, name.ReadBy))
	}
	for _, want := range declared {
		if !slices.Contains(listed, want) {
			t.Errorf("%s, and process.Names does not say so", want)
		}
	}
	for _, had := range listed {
		if !slices.Contains(declared, had) {
			t.Errorf("process.Names says that %s, and none of them declares it so", had)
		}
	}
	if !slices.IsSorted(listed) {
		t.Error("process.Names is not in order")
	}
}

func TestNamesOfTheDocumentAreKnown(t *testing.T) { // SHD-12
	t.Parallel()
	document := filepath.Join(t.TempDir(), "topology.json")
	text := `{"defaults":{"password":"${WIGGLE_OUR_SECRET}"},
		"generations":[{"id":1,"activeFrom":"2020-01-01T00:00:00Z","weights":{"0":1}}],
		"shards":[{"id":0,"state":"active","roles":["instances","home","auth"],"primary":{"url":"postgres://db/w"}}]}`
	if err := os.WriteFile(document, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := app.Load([]string{"WIGGLE_STORAGE_TOPOLOGY=" + document, "WIGGLE_OUR_SECRET=x"}); err != nil {
		t.Error(err)
	}
}

// cluster is the environment of a cluster of two shards.
func cluster(t *testing.T) []string {
	t.Helper()
	document := topology.Document{
		Generations: []topology.DocumentGeneration{{ID: 1, ActiveFrom: time.Unix(0, 0), Weights: map[int]float64{0: 1, 1: 1}}},
	}
	document.Defaults.Pool = 4
	for shard := range 2 {
		roles := topology.Roles{topology.RoleInstances}
		if shard == 0 {
			roles = append(roles, topology.RoleHome, topology.RoleAuth)
		}
		document.Shards = append(document.Shards, topology.DocumentShard{
			ID: shard, State: topology.StateActive, Roles: roles,
			Primary: &topology.DocumentMember{URL: topology.NewCredential(pgtest.NewDatabase(t))},
		})
	}
	text, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"WIGGLE_STORAGE_TOPOLOGY=" + string(text), "WIGGLE_LOG_LEVEL=error", "WIGGLE_GRACE=2s"}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// serve runs a process until the test ends, and fails the test if it does not end well.
func serve(t *testing.T, run func(ctx context.Context, environ []string) error, environ ...string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx, environ) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// runOrders runs a few orders through the router; with indexed it waits until search finds them all.
func runOrders(t *testing.T, url string, indexed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client, err := wiggle.Dial(url, wiggle.WithRetries(100, 20*time.Millisecond, 200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Register(ctx, demo.Flow()); err != nil {
		t.Fatal(err)
	}
	shop := &demo.Shop{}
	working, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- shop.Worker(client, wiggle.WorkerOptions{}).Run(working) }()
	const orders = 12
	result, err := demo.Run(ctx, client, shop, demo.Options{Count: orders, Seed: 3, Indexed: indexed})
	if err != nil || result.Completed != orders || result.Failed != 0 || (result.Indexed == orders) != indexed {
		t.Errorf("%+v, %v", result, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	settled := int64(0)
	for inst, err := range client.List(ctx, wiggle.Filter{Workflow: demo.Workflow}) {
		if err != nil {
			t.Fatal(err)
		}
		for entry, err := range client.History(ctx, inst.ID) {
			if err != nil {
				t.Fatal(err)
			}
			if entry.Kind == "STEP_COMPLETED" || entry.Kind == "STEP_FAILED" {
				settled++
			}
		}
	}
	if settled != result.Steps {
		t.Errorf("history has %d attempts, the demo counts %d", settled, result.Steps)
	}
}

func TestServeAll(t *testing.T) { // ARC-4
	t.Parallel()
	environ, addr, metrics := cluster(t), freeAddr(t), freeAddr(t)
	serve(t, app.ServeAll, append(environ, "WIGGLE_AUTH=off", "WIGGLE_ROUTER_ADDR="+addr, "WIGGLE_METRICS_ADDR="+metrics)...)
	runOrders(t, "http://"+addr, false)
	get(t, "http://"+metrics+"/metrics", http.StatusOK)
	get(t, "http://"+addr+"/metrics", http.StatusNotFound)
	get(t, "http://"+addr+"/healthz", http.StatusOK)
	checkFacts(t, environ)
}

// TestServeAllSearches: with NATS and a search shard the search service runs too. Here one database carries all roles (SHD-14).
func TestServeAllSearches(t *testing.T) { // ARC-4
	t.Parallel()
	nats, err := devstack.StartNATS(devstack.NATSConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Stop)
	addr := freeAddr(t)
	serve(t, app.ServeAll, "WIGGLE_AUTH=off", "WIGGLE_DATABASE_URL="+pgtest.NewDatabase(t), "WIGGLE_NATS_URLS="+nats.URL(), "WIGGLE_ROUTER_ADDR="+addr,
		"WIGGLE_LOG_LEVEL=error", "WIGGLE_GRACE=2s")
	runOrders(t, "http://"+addr, true)
}

// checkFacts asks the databases of a cluster that runs what they know, and then those of one that confuses them.
func checkFacts(t *testing.T, environ []string) { // SHD-13
	t.Helper()
	s, err := app.LoadMigrate(environ)
	if err != nil {
		t.Fatal(err)
	}
	facts, unreachable := app.AskDatabases(t.Context(), s.Topology)
	if len(unreachable) > 0 || len(facts.Claims) != 2 || facts.Claims[0].ClusterID == "" ||
		facts.Claims[0].ClusterID != facts.Claims[1].ClusterID {
		t.Errorf("facts %v, unreachable %v", facts, unreachable)
	}
	if len(facts.Registry) != 2 || facts.Registry[1].ShardID != 1 || facts.Registry[1].State != topology.StateActive {
		t.Errorf("the registry is %v", facts.Registry)
	}
	if problems := topology.Check(s.Topology, facts.Registry, facts.Claims); problems != nil {
		t.Errorf("refused: %v", problems)
	}
	shards := s.Topology.Shards
	shards[0].Primary, shards[1].Primary = shards[1].Primary, shards[0].Primary
	facts, _ = app.AskDatabases(t.Context(), s.Topology)
	if problems := topology.Check(s.Topology, facts.Registry, facts.Claims); problems == nil || len(problems.List) != 2 {
		t.Errorf("confused databases: %v", problems)
	}
}

func TestServeApart(t *testing.T) {
	t.Parallel()
	environ, addr, a, b := cluster(t), freeAddr(t), freeAddr(t), freeAddr(t)
	// Two instances processes, one of which has both shards, and a router: all with the settings of all.
	environ = append(environ, "WIGGLE_AUTH=off", "WIGGLE_ROUTER_ADDR="+addr, "WIGGLE_INSTANCES_ADDR="+a, "WIGGLE_SERVER=http://"+addr,
		fmt.Sprintf("WIGGLE_INSTANCES_URLS=http://%s,http://%s", a, b))
	environ = slices.Clip(append(environ, "WIGGLE_SERVICE_KEY="+strings.Repeat("key-of-this-cluster-", 2)))
	serve(t, instances.Main, environ...)
	serve(t, instances.Main, append(environ, "WIGGLE_INSTANCES_ADDR="+b, "WIGGLE_INSTANCES_SHARDS=1")...)
	serve(t, router.Main, environ...)
	runOrders(t, "http://"+addr, false)
	for _, at := range []string{addr, a, b} {
		get(t, "http://"+at+"/metrics", http.StatusOK)
	}
	// A service's port is no way around the router (AUT-4).
	for _, at := range []string{a, b} {
		client := wigglev1connect.NewInstanceServiceClient(http.DefaultClient, "http://"+at)
		_, err := client.CountInstances(t.Context(), &wigglev1.CountInstancesRequest{})
		if connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "WIGGLE_SERVICE_KEY") {
			t.Errorf("%s answers a stranger with %v", at, err)
		}
	}
}

func get(t *testing.T, address string, want int) {
	t.Helper()
	res, err := http.Get(address) //nolint:gosec // our own
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != want {
		t.Errorf("%s answers %d, want %d", address, res.StatusCode, want)
	}
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	err = app.ServeAll(t.Context(), []string{
		"WIGGLE_AUTH=off", "WIGGLE_DATABASE_URL=postgres://127.0.0.1:1/w", "WIGGLE_ROUTER_ADDR=" + l.Addr().String(), "WIGGLE_LOG_LEVEL=error",
	})
	if err == nil || !strings.Contains(err.Error(), "WIGGLE_ROUTER_ADDR") {
		t.Errorf("got %v", err)
	}
}

func TestMigrate(t *testing.T) { // SHD-15
	t.Parallel()
	s, err := app.LoadMigrate(cluster(t))
	if err != nil {
		t.Fatal(err)
	}
	_, failed, err := app.Migrate(t.Context(), s.Topology, app.MigrateOptions{Verify: true})
	if err != nil || len(failed) != 2 || !strings.Contains(failed[0].Err.Error(), "run wiggle migrate") {
		t.Errorf("verify of new databases: %v, %v", failed, err)
	}
	schemas, failed, err := app.Migrate(t.Context(), s.Topology, app.MigrateOptions{Shards: []int{1, 1}})
	if err != nil || len(failed) > 0 || len(schemas) != 2 || len(schemas[0].Applied) == 0 || schemas[0].Shard != 1 {
		t.Errorf("one shard: %+v, %v, %v", schemas, failed, err)
	}
	if _, _, err = app.Migrate(t.Context(), s.Topology, app.MigrateOptions{Shards: []int{3}}); err == nil {
		t.Error("a shard that does not exist was migrated")
	}
	if _, failed, err = app.Migrate(t.Context(), s.Topology, app.MigrateOptions{}); err != nil || len(failed) > 0 {
		t.Errorf("all: %v, %v", failed, err)
	}
	schemas, failed, err = app.Migrate(t.Context(), s.Topology, app.MigrateOptions{Verify: true})
	if err != nil || len(failed) > 0 || len(schemas) != 7 || schemas[6].Version != schemas[6].Target {
		t.Errorf("verify: %+v, %v, %v", schemas, failed, err)
	}
	pool := pgtest.OpenPool(t, s.Topology.Home().Primary.ConnString())
	later := func(requires string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), "insert into wiggle_migrations_home (version, name, checksum, requires) select max(version) + 100,"+
			" 'later.sql', '', "+requires+" from wiggle_migrations_home"); err != nil {
			t.Fatal(err)
		}
	}
	later("0")
	if _, failed, err = app.Migrate(t.Context(), s.Topology, app.MigrateOptions{Verify: true}); err != nil || len(failed) > 0 {
		t.Errorf("a newer schema with which this binary can work: %v, %v", failed, err)
	}
	later("max(version)")
	_, failed, err = app.Migrate(t.Context(), s.Topology, app.MigrateOptions{})
	if err != nil || len(failed) != 1 || !strings.Contains(failed[0].Detail(), "run a newer release") {
		t.Errorf("a newer schema with which it cannot: %v, %v", failed, err)
	}
	facts, unreachable := app.AskDatabases(t.Context(), s.Topology)
	if len(facts.Claims) > 0 || len(facts.Registry) > 0 || len(unreachable) > 0 {
		t.Errorf("nobody has claimed them: %v, %v", facts, unreachable)
	}
}

func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(pgtest.NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/no_such_database"
	s, err := app.LoadMigrate([]string{"WIGGLE_DATABASE_URL=" + address.String()})
	if err != nil {
		t.Fatal(err)
	}
	if _, failed, err := app.Migrate(t.Context(), s.Topology, app.MigrateOptions{}); err != nil || len(failed) != 1 {
		t.Errorf("migrate: %v, %v", failed, err)
	}
	if _, failed := app.AskDatabases(t.Context(), s.Topology); len(failed) != 1 {
		t.Errorf("claims: %v", failed)
	}
}
