package topology_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/placement"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

func env(pairs map[string]string) topology.Environment {
	return func(name string) (string, bool) {
		text, ok := pairs[name]
		return text, ok
	}
}

func noFile(path string) ([]byte, error) {
	return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
}

const small = `{"generations":[{"id":1,"activeFrom":"2026-10-01T00:00:00Z","weights":{"4":1}}],
	"shards":[{"id":4,"state":"active","roles":["instances","home","auth"],"primary":{"url":"postgres://${H}/db"}}]}`

func TestLoadDocument(t *testing.T) { // SHD-10
	t.Parallel()
	readFile := func(path string) ([]byte, error) {
		if path != "/etc/wiggle/topology.json" {
			return noFile(path)
		}
		return []byte(small), nil
	}
	for _, setting := range []string{small, " \n" + small, "/etc/wiggle/topology.json"} {
		top, err := topology.Load(env(map[string]string{topology.EnvTopology: setting, "H": "pg", "WIGGLE_JDBC_URL": ""}), readFile)
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := top.Shard(4); !ok || s.Primary.ConnString() != "postgres://pg/db" || top.Home().ID != 4 || top.Auth().ID != 4 {
			t.Errorf("got %v", top)
		}
		if _, ok := top.Shard(3); ok {
			t.Error("there is no shard 3")
		}
	}
}

func TestLoadSingleDatabase(t *testing.T) { // SHD-14
	t.Parallel()
	const (
		primary  = "jdbc:postgresql://a,b/db?user=u&password=" + literal
		replicas = "postgres://u:" + literal + "@r0,r1/db, jdbc:postgresql://r2/db\npostgres://r3/db"
	)
	newer := map[string]string{
		"WIGGLE_DATABASE_URL": primary, "WIGGLE_REPLICA_URLS": replicas, "WIGGLE_REPLICA_POOL_SIZE": "3",
		"WIGGLE_MAX_REPLICA_LAG_MILLIS": "250", "WIGGLE_REPLICA_FALLBACK": "Fail",
	}
	older := map[string]string{
		"WIGGLE_JDBC_URL": primary, "WIGGLE_JDBC_REPLICA_URLS": replicas, "WIGGLE_JDBC_REPLICA_POOL_SIZE": "3",
		"WIGGLE_JDBC_MAX_REPLICA_LAG_MILLIS": "250", "WIGGLE_JDBC_REPLICA_FALLBACK": "FAIL",
	}
	top, err := topology.Load(env(newer), noFile)
	if err != nil {
		t.Fatal(err)
	}
	const want = `generation 1 from 1970-01-01T00:00:00Z: weights map[0:1]
shard 0 active instances,home,auth,search
  primary postgres://a,b/db?target_session_attrs=read-write pool=32 commit=local fallback=fail
  replica postgres://r0,r1/db pool=3 maxLag=250ms
  replica postgres://r2/db pool=3 maxLag=250ms
  replica postgres://r3/db pool=3 maxLag=250ms
`
	if got := top.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := top.Shards[0].Replicas[0].ConnString(); got != "postgres://u:"+literal+"@r0,r1/db" {
		t.Errorf("replica connects to %s", got)
	}
	again, err := topology.Load(env(older), noFile)
	if err != nil || !reflect.DeepEqual(top, again) {
		t.Errorf("by older names: %v, %v", again, err)
	}
}

func TestSingleDatabaseIsADocumentWithOneShard(t *testing.T) { // SHD-14
	t.Parallel()
	document, err := json.Marshal(topology.Document{
		Generations: []topology.DocumentGeneration{{ID: 1, ActiveFrom: time.Unix(0, 0), Weights: map[int]float64{0: 1}}},
		Shards: []topology.DocumentShard{{
			State: topology.StateActive, Roles: topology.Roles{"search", "auth", "home", "instances"},
			Primary:  &topology.DocumentMember{URL: topology.NewCredential("postgres://u:" + literal + "@h/db")},
			Replicas: []topology.DocumentMember{{URL: topology.NewCredential("postgres://r/db")}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := topology.Parse(document, env(nil))
	if err != nil {
		t.Fatal(err)
	}
	single, err := topology.FromSingle(topology.Single{
		URL:         topology.NewCredential("postgres://u:" + literal + "@h/db"),
		ReplicaURLs: []topology.Credential{topology.NewCredential("postgres://r/db")},
	})
	if err != nil || !reflect.DeepEqual(parsed, single) {
		t.Errorf("got %v, %v, want %v", single, err, parsed)
	}
	if got := placement.Place(single.Placement(), ulid.MustNewDefault(time.Unix(1e9, 0))); got != 0 {
		t.Errorf("placed on %d", got)
	}
}

func TestLoadRefuses(t *testing.T) { // SHD-10, SHD-14, SHD-17
	t.Parallel()
	const url = "postgres://u:" + literal + "@h/db"
	for name, c := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"nothing": {
			nil,
			[]string{"WIGGLE_DATABASE_URL: is not set, and neither is WIGGLE_STORAGE_TOPOLOGY"},
		},
		"replicas alone": {
			map[string]string{"WIGGLE_REPLICA_URLS": url},
			[]string{"WIGGLE_DATABASE_URL: is not set"},
		},
		"both": {
			map[string]string{"WIGGLE_STORAGE_TOPOLOGY": small, "H": "h", "WIGGLE_DATABASE_URL": url},
			[]string{"WIGGLE_DATABASE_URL: cannot be set together with WIGGLE_STORAGE_TOPOLOGY"},
		},
		"both, by the older name, with a broken document": {
			map[string]string{"WIGGLE_STORAGE_TOPOLOGY": small, "WIGGLE_JDBC_URL": url, "WIGGLE_REPLICA_FALLBACK": "fail"},
			[]string{
				"WIGGLE_JDBC_URL: cannot be set", "WIGGLE_REPLICA_FALLBACK: cannot be set",
				"shard 4 primary: url needs the environment variable H",
			},
		},
		"older and newer name": {
			map[string]string{"WIGGLE_DATABASE_URL": url, "WIGGLE_JDBC_URL": url + "2"},
			[]string{"WIGGLE_JDBC_URL: is the older name of WIGGLE_DATABASE_URL"},
		},
		"bad values": {
			map[string]string{
				"WIGGLE_DATABASE_URL": url + "#", "WIGGLE_REPLICA_URLS": url + "," + url + "@", "WIGGLE_REPLICA_POOL_SIZE": "0",
				"WIGGLE_JDBC_MAX_REPLICA_LAG_MILLIS": "5s", "WIGGLE_REPLICA_FALLBACK": "primry",
			},
			[]string{
				"WIGGLE_DATABASE_URL: url has a #", "WIGGLE_REPLICA_URLS replica 1: url has an @",
				"WIGGLE_REPLICA_POOL_SIZE: must be a whole number from 1 to 10000", "WIGGLE_JDBC_MAX_REPLICA_LAG_MILLIS: must be",
				`WIGGLE_REPLICA_FALLBACK: value "primry" is none of primary, fail; the nearest is primary`,
			},
		},
		"no file": {
			map[string]string{"WIGGLE_STORAGE_TOPOLOGY": "/no/file.json"},
			[]string{`reading "/no/file.json": file does not exist`},
		},
		"a URL as document": {
			map[string]string{"WIGGLE_STORAGE_TOPOLOGY": url},
			[]string{"must be a document, which starts with {"},
		},
		"a list": {
			map[string]string{"WIGGLE_STORAGE_TOPOLOGY": `[{"password":"` + literal + `"}]`},
			[]string{"reading the file that it names"},
		},
		"removed": {
			map[string]string{
				"WIGGLE_DATABASE_URL": url, "WIGGLE_COORDINATOR_URL": "http://c", "WIGGLE_NAMESPACE": "n", "WIGGLE_CELL_ID": "1",
				"WIGGLE_REGION": "eu", "WIGGLE_ADVERTISE_HOST": "h", "WIGGLE_ENDPOINT_REWRITE": "a=b",
			},
			[]string{
				"WIGGLE_COORDINATOR_URL: ", "WIGGLE_NAMESPACE: ", "WIGGLE_CELL_ID: ", "WIGGLE_REGION: ",
				"WIGGLE_ADVERTISE_HOST: ", "WIGGLE_ENDPOINT_REWRITE: ",
			},
		},
	} {
		top, err := topology.Load(env(c.env), noFile)
		problems, ok := errors.AsType[*topology.Problems](err)
		if !ok || top != nil {
			t.Errorf("%s: got %v, %v", name, top, err)
			continue
		}
		if len(problems.List) != len(c.want) {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in %v", name, want, err)
			}
		}
		noPassword(t, err.Error())
	}
}

func TestFromSingleRefuses(t *testing.T) { // SHD-13, SHD-14
	t.Parallel()
	_, err := topology.FromSingle(topology.Single{
		URL: topology.NewCredential("postgres://u:" + literal + "@h:x/"), ReplicaURLs: []topology.Credential{{}},
		Pool: -1, ReplicaPool: topology.MaxPool + 1, MaxReplicaLagMillis: -1, ReplicaFallback: "prim",
	})
	problems, ok := errors.AsType[*topology.Problems](err)
	if !ok || len(problems.List) != 6 {
		t.Fatal(err)
	}
	noPassword(t, err.Error())
}

func TestRemovedSettings(t *testing.T) { // SHD-17
	t.Parallel()
	problems := topology.RemovedSettings([]string{
		"PATH=/bin", "WIGGLE_COORD_LEASE_MILLIS=5", "WIGGLE_COORD_TOKEN=" + literal, "WIGGLE_COORD_EMPTY=", "WIGGLE_REGION=eu",
		"WIGGLE_NAMESPACE=", "WIGGLE_COORDINATOR_URL=http://u:" + literal + "@c", "WIGGLE_DATABASE_URL=x",
	})
	var where []string
	for _, p := range problems.List {
		where = append(where, p.Where)
		if !strings.Contains(p.Message, "unset it: ") {
			t.Errorf("%v does not say what replaces it", p)
		}
	}
	if got := strings.Join(where, " "); got != "WIGGLE_COORD_LEASE_MILLIS WIGGLE_COORD_TOKEN WIGGLE_COORDINATOR_URL WIGGLE_REGION" {
		t.Errorf("refused %s", got)
	}
	noPassword(t, problems.Error())
	if p := topology.RemovedSettings([]string{"PATH=/bin", "WIGGLE_COORD"}); p != nil || p.Err() != nil {
		t.Error(p)
	}
}

func TestPasswordsKeepEveryCharacter(t *testing.T) { // SHD-11
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://h/db?password=a+b%2Bc%20d%26e": "postgres://h/db?password=a%2Bb%2Bc%20d%26e",
		"postgres://u:a+b%2Bc%20d%26e@h/db":        "postgres://u:a+b+c%20d&e@h/db",
		"postgres://u:1@h/db?user=v&password=2":    "postgres://v:2@h/db",
		"postgres://u:@h":                          "postgres://u@h",
	} {
		top, err := topology.FromSingle(topology.Single{URL: topology.NewCredential(url)})
		if err != nil {
			t.Error(err)
		} else if got := top.Home().Primary.ConnString(); got != want {
			t.Errorf("%s becomes %s, want %s", url, got, want)
		}
	}
}

func TestConnections(t *testing.T) { // SHD-15
	t.Parallel()
	top, err := topology.Parse(readFixture(t, "testdata/valid/cascade.json"), testEnv)
	if err != nil {
		t.Fatal(err)
	}
	c := top.Connections()
	want := []topology.ShardConnections{{0, 30, 11 + 31 + 41}, {1, 10, 21}, {10, 10, 0}, {20, 10, 0}}
	if !reflect.DeepEqual(c.Shards, want) || c.Shards[0].Total() != 113 || c.Total() != 113+31+10+10 {
		t.Errorf("got %v, %d", c, c.Total())
	}
	top, err = topology.Parse(readFixture(t, "testdata/valid/draining-and-retired.json"), testEnv)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(top.Connections().Shards); n != 4 {
		t.Errorf("connections to %d shards; none is opened to a retired one", n)
	}
}

func TestWithRoleIsInTheOrderOfIDs(t *testing.T) { // SHD-25
	t.Parallel()
	top, err := topology.Parse(readFixture(t, "testdata/valid/example.json"), testEnv)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int
	for _, s := range top.WithRole(topology.RoleInstances) {
		ids = append(ids, s.ID)
	}
	if !reflect.DeepEqual(ids, []int{0, 1, 2}) {
		t.Errorf("instance shards are %v", ids)
	}
}
