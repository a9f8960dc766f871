package search_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	"github.com/wiggle-run/wiggle/pkg/topology"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/search"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const cluster = "thecluster"

// router is a router in front of instances that tests make up.
type router struct {
	wigglev1connect.UnimplementedInstanceServiceHandler

	mu        sync.Mutex
	instances map[string]*wigglev1.Instance
}

func (r *router) GetInstances(_ context.Context, req *wigglev1.GetInstancesRequest) (*wigglev1.GetInstancesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := &wigglev1.GetInstancesResponse{}
	for _, ref := range req.GetInstances() {
		o := &wigglev1.InstanceOutcome{}
		if in := r.instances[ref.GetInstanceId()]; in != nil {
			o.Outcome = &wigglev1.InstanceOutcome_Instance{Instance: proto.CloneOf(in)}
		} else {
			o.Outcome = &wigglev1.InstanceOutcome_Fault{Fault: faults.NotFound("instance", ref.GetInstanceId()).ToProto()}
		}
		res.Outcomes = append(res.Outcomes, o)
	}
	return res, nil
}

func (r *router) CountInstances(context.Context, *wigglev1.CountInstancesRequest) (*wigglev1.CountInstancesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &wigglev1.CountInstancesResponse{Total: int64(len(r.instances))}, nil
}

func (r *router) ScanInstances(_ context.Context, req *internalv1.ScanInstancesRequest) (*internalv1.ScanInstancesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := &internalv1.ScanInstancesResponse{Last: true}
	for _, in := range r.instances {
		if req.GetShard() == 0 && in.GetId() > req.GetAfterInstanceId() {
			res.Instances = append(res.Instances, proto.CloneOf(in))
		}
	}
	return res, nil
}

// scene is a search process with all that is around it.
type scene struct {
	*testing.T
	*router

	network *rpc.MemoryNetwork
	nats    *devstack.NATS
	home    string
	shards  []string // databases of the search shards, 20 and 21
	client  wigglev1connect.SearchServiceClient
	http    *http.Client
	stop    context.CancelFunc
	done    chan error
	seq     int64
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{
		T: t, router: &router{instances: map[string]*wigglev1.Instance{}}, network: rpc.NewMemoryNetwork(),
		home: pgtest.NewDatabase(t), shards: []string{pgtest.NewDatabase(t), pgtest.NewDatabase(t)}, done: make(chan error, 1),
	}
	var err error
	if s.nats, err = devstack.StartNATS(devstack.NATSConfig{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.nats.Stop() })
	s.makeStream() // a server that is stopped while it makes a stream leaves something behind
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	server.Mount(wigglev1connect.NewInstanceServiceHandler(s.router, server.Options()...))
	server.Mount(wiggleinternalv1connect.NewScanServiceHandler(s.router, server.Options()...))
	s.serve(server)
	config := rpc.ClientConfig{DialContext: s.network.DialContext}
	s.http = rpc.NewHTTPClient(config)
	t.Cleanup(s.http.CloseIdleConnections)
	options, err := rpc.NewClientOptions(config)
	if err != nil {
		t.Fatal(err)
	}
	s.client = wigglev1connect.NewSearchServiceClient(s.http, s.network.URL("search"), options...)
	return s
}

func (s *scene) makeStream() {
	s.Helper()
	b, err := bus.Open(bus.Config{URLs: []string{s.nats.URL()}})
	if err != nil {
		s.Fatal(err)
	}
	defer b.Close()
	if _, err := b.EnsureStream(s.Context()); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) serve(server *rpc.Server) {
	s.Helper()
	listener, err := s.network.Listen("router")
	if err != nil {
		s.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	s.Cleanup(func() {
		if err := errors.Join(server.Close(), <-served); err != nil {
			s.Error(err)
		}
	})
}

// claimHome makes home's database what an instances process makes of it.
func (s *scene) claimHome() {
	s.Helper()
	pool := pgtest.OpenPool(s, s.home)
	if _, err := postgres.Migrate(s.Context(), pool, postgres.ShardMigrations(), postgres.Apply); err != nil {
		s.Fatal(err)
	}
	if _, err := postgres.Claim(s.Context(), pool, 0, cluster); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) topology() *topology.Topology {
	s.Helper()
	doc := topology.Document{Generations: []topology.DocumentGeneration{
		{ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{0: 1}},
	}}
	add := func(id int, url string, roles ...topology.Role) {
		doc.Shards = append(doc.Shards, topology.DocumentShard{
			ID: id, State: topology.StateActive, Roles: roles, Primary: &topology.DocumentMember{URL: topology.NewCredential(url)},
		})
	}
	add(0, s.home, topology.RoleInstances, topology.RoleHome, topology.RoleAuth)
	for i, url := range s.shards {
		add(20+i, url, topology.RoleSearch)
	}
	text, err := json.Marshal(doc)
	if err != nil {
		s.Fatal(err)
	}
	top, err := topology.Parse(text, func(string) (string, bool) { return "", false })
	if err != nil {
		s.Fatal(err)
	}
	return top
}

// start starts the process.
func (s *scene) start(change ...func(*search.Config)) {
	s.Helper()
	listener, err := s.network.Listen("search")
	if err != nil {
		s.Fatal(err)
	}
	cfg := search.Config{
		Topology: s.topology(), Listener: listener, NATS: bus.Config{URLs: []string{s.nats.URL()}}, PoolSize: 4,
		RouterURLs: []string{s.network.URL("gone"), s.network.URL("router")}, DialContext: s.network.DialContext, Settled: time.Nanosecond,
	}
	for _, f := range change {
		f(&cfg)
	}
	service, err := search.New(cfg)
	if err != nil {
		s.Fatal(err)
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go func() { s.done <- service.Run(ctx) }()
	s.Cleanup(func() {
		s.stop()
		if err := <-s.done; err != nil {
			s.Error(err)
		}
		s.done <- nil
	})
}

// until tries again and again until something is so.
func (s *scene) until(what string, is func() bool) {
	s.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	deadline := time.After(30 * time.Second)
	for !is() {
		select {
		case <-again.C:
		case err := <-s.done:
			s.done <- nil
			s.Fatalf("%s: the process ended: %v", what, err)
		case <-deadline:
			s.Fatalf("%s: not so in 30 s", what)
		}
	}
}

func (s *scene) readyz() string {
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.network.URL("search")+"/readyz", nil)
	if err != nil {
		s.Fatal(err)
	}
	res, err := s.http.Do(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	if res.StatusCode == http.StatusOK {
		return "ready"
	}
	return string(body)
}

func idOf(n int) string {
	var u ulid.ULID
	u[0] = 1
	binary.BigEndian.PutUint64(u[8:], uint64(n))
	return shardid.NewInstance(0, u).String()
}

func (s *scene) put(n int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[idOf(n)] = &wigglev1.Instance{
		Id: idOf(n), Namespace: "default", Workflow: "order", Revision: 1, CreatedAt: timestamppb.New(time.Unix(int64(n), 0)),
		State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING, Context: &wigglev1.Payload{Data: []byte(`{"text":"` + text + `"}`)},
	}
}

func (s *scene) tell(n int) {
	s.Helper()
	b, err := bus.Open(bus.Config{URLs: []string{s.nats.URL()}})
	if err != nil {
		s.Fatal(err)
	}
	defer b.Close()
	s.seq++
	event := bus.Event{
		Seq: s.seq, Instance: idOf(n), Revision: 1, Namespace: "default", Workflow: "order", Type: "wf.started", Time: time.Now(),
	}
	s.until("the event is in the stream", func() bool {
		stream, err := b.EnsureStream(s.Context())
		if err != nil {
			return false
		}
		_, err = b.Publish(s.Context(), stream.ID, []bus.Event{event})
		return err == nil
	})
}

func (s *scene) finds(text string, want int) func() bool {
	return func() bool {
		res, err := s.client.Search(s.Context(), &wigglev1.SearchRequest{Query: text})
		return err == nil && len(res.GetHits()) == want
	}
}

// From an event to a hit, over the network and with everything in place; and what operators see and do.
func TestFromEventToHit(t *testing.T) { // SRC-1, SRC-3, SRC-8
	t.Parallel()
	s := newScene(t)
	s.claimHome()
	s.start()
	for n := range 10 {
		s.put(n, "Earl Grey")
		s.tell(n)
	}
	s.until("the instances are found", s.finds("grey", 10))
	s.until("it is ready", func() bool { return s.readyz() == "ready" })
	status, err := s.client.GetIndexStatus(t.Context(), &wigglev1.GetIndexStatusRequest{})
	if err != nil || status.GetDocuments() != 10 || len(status.GetShards()) != 2 || status.GetDelayP99().AsDuration() <= 0 {
		t.Errorf("the status is %v, %v", status, err)
	}
	s.until("nothing waits", func() bool {
		status, err := s.client.GetIndexStatus(t.Context(), &wigglev1.GetIndexStatusRequest{})
		return err == nil && status.GetPending() == 0
	})
	s.put(100, "never told of")
	verify, err := s.client.Verify(t.Context(), &wigglev1.VerifyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	last := &wigglev1.VerifyResponse{}
	for verify.Receive() {
		last = verify.Msg()
	}
	if verify.Err() != nil || last.GetMissing() != 1 || last.GetCompared() != 11 || !last.GetDone() {
		t.Errorf("verify says %v, %v", last, verify.Err())
	}
	_ = verify.Close()
	reindex, err := s.client.Reindex(t.Context(), &wigglev1.ReindexRequest{})
	if err != nil {
		t.Fatal(err)
	}
	progress := &wigglev1.ReindexResponse{}
	for reindex.Receive() {
		progress = reindex.Msg()
	}
	if reindex.Err() != nil || progress.GetRead() != 11 || progress.GetWritten() != 1 || !progress.GetDone() {
		t.Errorf("reindex says %v, %v", progress, reindex.Err())
	}
	_ = reindex.Close()
	if !s.finds("never told", 1)() {
		t.Error("what was indexed again is not found")
	}
}

// A process starts while NATS, the routers, home and a search shard are away, says so, and serves what is there; and all of
// it when they come.
func TestStartsWithoutTheRest(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.nats.Stop()
	s.shards[1] = "postgres://127.0.0.1:1/nowhere"
	s.network.Partition(rpc.AnyName, "router", rpc.Refused)
	s.start()
	s.until("it waits for home", func() bool {
		said := s.readyz()
		return strings.Contains(said, "shard 20: new database, waiting for an instances process") &&
			strings.Contains(said, "shard 21: ") && strings.Contains(said, "NATS does not answer") && !strings.Contains(said, "127.0.0.1")
	})
	s.claimHome()
	s.until("it serves the shard that is there", func() bool {
		res, err := s.client.Search(t.Context(), &wigglev1.SearchRequest{MissingShards: wigglev1.MissingShards_MISSING_SHARDS_PARTIAL})
		return err == nil && res.GetShards()[0].GetFault() == nil && res.GetShards()[1].GetFault() != nil
	})
	if _, err := s.client.Search(t.Context(), &wigglev1.SearchRequest{}); !errors.Is(err, faults.ErrShardsMissing) {
		t.Errorf("a shard is missing: %v", err)
	}
	if status, err := s.client.GetIndexStatus(t.Context(), &wigglev1.GetIndexStatusRequest{}); err != nil || status.GetPending() != -1 {
		t.Errorf("without NATS: %v, %v", status, err)
	}
	if err := s.nats.Restart(); err != nil {
		t.Fatal(err)
	}
	for n := range 10 {
		s.put(n, "Earl Grey")
		s.tell(n)
	}
	s.network.Heal()
	s.until("what the shard that is there holds is found", func() bool {
		res, err := s.client.Search(t.Context(), &wigglev1.SearchRequest{
			Query: "grey", MissingShards: wigglev1.MissingShards_MISSING_SHARDS_PARTIAL,
		})
		return err == nil && len(res.GetHits()) > 0
	})
}

// proxy stands before a database and can be taken away.
type proxy struct {
	mu    sync.Mutex
	to    string // socket of the server
	at    string
	inner net.Listener
	conns []net.Conn
	wg    sync.WaitGroup
}

func (p *proxy) open(t *testing.T) {
	t.Helper()
	at := p.at
	if at == "" {
		at = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inner, p.at = l, l.Addr().String()
	p.wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", p.to)
			if err != nil {
				_ = near.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, near, far)
			p.mu.Unlock()
			p.wg.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() })
			p.wg.Go(func() { _, _ = io.Copy(near, far); _ = near.Close() })
		}
	})
}

func (p *proxy) close() {
	p.mu.Lock()
	_ = p.inner.Close()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	p.wg.Wait()
}

// While a search shard's database is away its documents wait, the others' are indexed, and nothing is lost.
func TestSearchShardGoesAway(t *testing.T) { // SRC-6
	t.Parallel()
	s := newScene(t)
	s.claimHome()
	u, err := url.Parse(s.shards[1])
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{to: filepath.Join(u.Query().Get("host"), ".s.PGSQL."+u.Query().Get("port"))}
	p.open(t)
	t.Cleanup(p.close)
	s.shards[1] = fmt.Sprintf("postgres://%s@%s%s?sslmode=disable", u.User.Username(), p.at, u.Path)
	s.start()
	s.put(0, "tea")
	s.tell(0)
	s.until("it works", s.finds("tea", 1))
	s.until("it is ready", func() bool { return s.readyz() == "ready" })
	p.close()
	for n := 1; n < 20; n++ {
		s.put(n, "tea")
		s.tell(n)
	}
	partial := &wigglev1.SearchRequest{Query: "tea", MissingShards: wigglev1.MissingShards_MISSING_SHARDS_PARTIAL}
	s.until("the other shard goes on", func() bool {
		res, err := s.client.Search(t.Context(), partial)
		return err == nil && len(res.GetHits()) > 3 && res.GetShards()[1].GetFault() != nil
	})
	if _, err := s.client.Search(t.Context(), &wigglev1.SearchRequest{Query: "tea"}); !errors.Is(err, faults.ErrShardsMissing) {
		t.Errorf("all shards are wanted: %v", err)
	}
	p.open(t)
	s.until("everything is found", s.finds("tea", 20))
}

// A database that is another's, and a language that is none, stop the process.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(s *scene)
		change  func(*search.Config)
		want    string
	}{
		"another cluster": {prepare: func(s *scene) {
			pool := pgtest.OpenPool(s, s.shards[0])
			if _, err := postgres.Migrate(s.Context(), pool, postgres.ShardMigrations(), postgres.Apply); err != nil {
				s.Fatal(err)
			}
			if _, err := postgres.Claim(s.Context(), pool, 3, "other"); err != nil {
				s.Fatal(err)
			}
		}, want: "belongs to shard 3"},
		"language":       {change: func(c *search.Config) { c.Language = "klingon" }, want: `no text search configuration "klingon"`},
		"pending schema": {change: func(c *search.Config) { c.SchemaVerify = true }, want: "0001_shard.sql"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.claimHome()
			if test.prepare != nil {
				test.prepare(s)
			}
			if test.change == nil {
				test.change = func(*search.Config) {}
			}
			s.start(test.change)
			err := <-s.done
			s.done <- nil
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want %q, got %v", test.want, err)
			}
		})
	}
}

func TestMainRefusesWhatIsWrong(t *testing.T) { // OPS-2
	t.Parallel()
	database, nats, routers := "WIGGLE_DATABASE_URL=postgres://127.0.0.1:1/w", "WIGGLE_NATS_URLS=nats://127.0.0.1:1", "WIGGLE_ROUTER_URLS=http://x"
	for want, environ := range map[string][]string{
		"WIGGLE_NATS_URLS: is not set":                          {database, routers},
		"WIGGLE_ROUTER_URLS: is not set":                        {database, nats},
		`WIGGLE_ROUTER_URLS: names "x"`:                         {database, nats, "WIGGLE_ROUTER_URLS=x"},
		`WIGGLE_SEARCH_LANGUAGE: is "no such"`:                  {database, nats, routers, "WIGGLE_SEARCH_LANGUAGE=no such"},
		"did you mean WIGGLE_SEARCH_ADDR?":                      {database, nats, routers, "WIGGLE_SEARCH_ADR=x"},
		"WIGGLE_STORAGE_TOPOLOGY: has no shard with the role s": {nats, routers, "WIGGLE_STORAGE_TOPOLOGY=" + withoutSearch},
		"WIGGLE_SEARCH_ADDR: listen":                            {database, nats, routers, "WIGGLE_AUTH=off", "WIGGLE_SEARCH_ADDR=nowhere"},
	} {
		if err := search.Main(t.Context(), append(environ, "WIGGLE_LOG_LEVEL=error")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := search.New(search.Config{}); err == nil {
		t.Error("a process without anything was made")
	}
}

const withoutSearch = `{"generations":[{"id":1,"activeFrom":"1970-01-01T00:00:00Z","weights":{"0":1}}],` +
	`"shards":[{"id":0,"state":"active","roles":["instances","home","auth"],"primary":{"url":"postgres://s0/w"}}]}`
