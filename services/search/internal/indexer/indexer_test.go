package indexer_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/index"
	"github.com/wiggle-run/wiggle/services/search/internal/indexer"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
	"github.com/wiggle-run/wiggle/services/search/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// instances are those of a cluster, as a router tells them.
type instances struct {
	mu    sync.Mutex
	known map[string]*wigglev1.Instance
	err   error // of every call
	fault map[string]*wigglev1.Fault
	asked int
}

func (i *instances) Get(_ context.Context, refs []*wigglev1.InstanceRef) ([]*wigglev1.InstanceOutcome, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked += len(refs)
	if i.err != nil {
		return nil, i.err
	}
	outcomes := make([]*wigglev1.InstanceOutcome, len(refs))
	for n, ref := range refs {
		in, fault := i.known[ref.GetInstanceId()], i.fault[ref.GetInstanceId()]
		if in == nil && fault == nil {
			fault = faults.NotFound("instance", ref.GetInstanceId()).ToProto()
		}
		if fault != nil {
			outcomes[n] = &wigglev1.InstanceOutcome{Outcome: &wigglev1.InstanceOutcome_Fault{Fault: fault}}
			continue
		}
		outcomes[n] = &wigglev1.InstanceOutcome{Outcome: &wigglev1.InstanceOutcome_Instance{Instance: proto.CloneOf(in)}}
	}
	return outcomes, nil
}

func (i *instances) set(change func(*instances)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change(i)
}

// scene is an indexer over two search shards, with NATS.
type scene struct {
	*testing.T
	*instances

	nats   *devstack.NATS
	out    *bus.Bus // the leader's side
	feed   *bus.Follower
	pools  []*postgres.Pool
	down   []*atomic.Bool
	index  *index.Index
	delays *indexer.Delays
	seq    int64
}

func newScene(t *testing.T, indexers int) *scene {
	t.Helper()
	s := &scene{T: t, instances: &instances{known: map[string]*wigglev1.Instance{}, fault: map[string]*wigglev1.Fault{}}, delays: &indexer.Delays{}}
	var err error
	if s.nats, err = devstack.StartNATS(devstack.NATSConfig{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.nats.Stop() })
	s.out = s.open()
	var parts []*index.Shard
	for i := range 2 {
		url := pgtest.NewDatabaseFrom(t, "search "+migrations.Checksum(), func(ctx context.Context, url string) error {
			pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "template", URL: url})
			if err != nil {
				return err
			}
			defer pool.Close()
			_, err = postgres.Migrate(ctx, pool, migrations.Set(), postgres.Apply)
			return err
		})
		pool, down := pgtest.OpenPool(t, url, searchstore.Configure), &atomic.Bool{}
		s.pools, s.down = append(s.pools, pool), append(s.down, down)
		parts = append(parts, &index.Shard{ID: i, Store: searchstore.New(pool, "simple"), Ready: func() bool { return !down.Load() }})
	}
	if s.index, err = index.New(parts); err != nil {
		t.Fatal(err)
	}
	metrics, err := indexer.NewMetrics(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	in := s.open()
	s.feed = in.Follow(indexer.Group)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range indexers {
		x := indexer.New(in.Follow(indexer.Group), s.instances, s.index, s.delays, metrics, slog.New(slog.DiscardHandler))
		x.Retry = 10 * time.Millisecond
		running.Go(func() {
			if err := x.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { stop(); running.Wait() })
	return s
}

func (s *scene) open() *bus.Bus {
	s.Helper()
	b, err := bus.Open(bus.Config{URLs: []string{s.nats.URL()}, Name: s.Name()})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(b.Close)
	return b
}

func keyOf(n int) document.Key {
	var key document.Key
	binary.BigEndian.PutUint64(key.ULID[8:], uint64(n))
	return key
}

// put makes the n-th instance what it is now.
func (s *scene) put(n int, revision int32, text string, change ...func(*wigglev1.Instance)) {
	in := &wigglev1.Instance{
		Id: keyOf(n).String(), Namespace: "default", Workflow: "order", Revision: revision,
		State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING, CreatedAt: timestamppb.New(time.Unix(int64(n), 0)),
		Context: &wigglev1.Payload{Data: []byte(`"` + text + `"`)},
	}
	for _, f := range change {
		f(in)
	}
	s.set(func(i *instances) { i.known[in.GetId()] = in })
}

// tell publishes events about instances.
func (s *scene) tell(kind string, revision int32, ns ...int) {
	s.Helper()
	var events []bus.Event
	for _, n := range ns {
		s.seq++
		events = append(events, bus.Event{
			Shard: 0, Seq: s.seq, Instance: keyOf(n).String(), Revision: revision, Namespace: "default", Workflow: "order", Type: kind,
			Time: time.Now(),
		})
	}
	s.publish(events)
}

func (s *scene) publish(events []bus.Event) {
	s.Helper()
	s.until("the events are in the stream", func() bool {
		stream, err := s.out.EnsureStream(s.Context())
		if err == nil {
			var stored int
			stored, err = s.out.Publish(s.Context(), stream.ID, events)
			events = events[stored:]
		}
		if err != nil && !errors.Is(err, bus.ErrUnavailable) {
			s.Fatal(err)
		}
		return len(events) == 0
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
		case <-deadline:
			s.Fatalf("%s: not so in 30 s", what)
		}
	}
}

// drained waits until no event waits.
func (s *scene) drained() {
	s.Helper()
	s.until("all events are dealt with", func() bool {
		n, err := s.feed.Pending(s.Context())
		return err == nil && n == 0
	})
}

// found tells whether the n-th instance is found by a word.
func (s *scene) found(n int, word string) bool {
	s.Helper()
	store := s.index.Of(keyOf(n)).Store
	words, err := store.Parse(s.Context(), word)
	if err != nil {
		s.Fatal(err)
	}
	hits, _, err := store.Rank(s.Context(), &searchstore.Query{Words: words, Filter: searchstore.Filter{Namespace: "default"}}, searchstore.Window{}, nil, 10_000)
	if err != nil {
		s.Fatal(err)
	}
	for _, h := range hits {
		if h.Key == keyOf(n) {
			return true
		}
	}
	return false
}

// Events bring the documents of their instances, once for several; what handlers emit and what is no instance brings none;
// and an instance that is not there any more takes its document with it.
func TestEvents(t *testing.T) { // SRC-1, SRC-7
	t.Parallel()
	s := newScene(t, 2)
	s.put(1, 2, "tea")
	s.put(2, 1, "tea")
	s.put(3, 1, "coffee")
	s.tell("wf.started", 1, 1, 2)
	s.tell("wf.completed", 2, 1)
	s.tell("order.paid", 1, 3)
	s.until("the index holds 1 and 2", func() bool { return s.found(1, "tea") && s.found(2, "tea") })
	s.drained()
	if s.found(3, "coffee") {
		t.Error("the index holds 3, of which only a handler told")
	}
	if last, ok := s.delays.Last(); !ok || last > time.Minute {
		t.Errorf("the last delay is %v", last)
	}
	s.set(func(i *instances) { delete(i.known, keyOf(2).String()) })
	s.tell("wf.completed", 2, 2)
	s.until("an instance that is gone has no document", func() bool { return !s.found(2, "tea") })
	for _, id := range []string{"wfi_old", "nothing"} {
		s.seq++
		s.publish([]bus.Event{{Seq: s.seq, Instance: id, Type: "wf.started", Time: time.Now()}})
	}
	s.put(4, 1, "after")
	s.tell("wf.started", 1, 4)
	s.drained()
	if !s.found(4, "after") {
		t.Error("events about no instance hold up others")
	}
}

// However often and in whatever order events come, and whatever instances do meanwhile, the index ends at the last revision.
func TestAnyOrder(t *testing.T) { // SRC-1
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := newScene(t, 3)
	const n, revisions = 60, 4
	var ns []int
	for range revisions {
		for i := range n {
			ns = append(ns, i, i)
		}
	}
	random.Shuffle(len(ns), func(i, j int) { ns[i], ns[j] = ns[j], ns[i] })
	revision := map[int]int32{}
	for _, i := range ns {
		if revision[i] < revisions && random.IntN(2) == 0 {
			revision[i]++
			s.put(i, revision[i], fmt.Sprintf("at%d", revision[i]))
		}
		s.tell("wf.x", random.Int32N(revisions), i)
	}
	for i := range n {
		s.put(i, revisions+1, "last")
		s.tell("wf.completed", revisions+1, i)
	}
	s.drained()
	for i := range n {
		if !s.found(i, "last") {
			t.Errorf("instance %d is not in the index as it is", i)
		}
	}
}

// When NATS is back after it was away, events are indexed as before.
func TestNATSRestarts(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2)
	for round := range 3 {
		s.put(round, 1, "tea")
		s.tell("wf.started", 1, round)
		s.drained()
		if !s.found(round, "tea") {
			t.Errorf("round %d: the event was not indexed", round)
		}
		s.nats.Stop()
		if _, err := s.feed.Pending(t.Context()); err == nil {
			t.Error("NATS is away and tells what waits")
		}
		if err := s.nats.Restart(); err != nil {
			t.Fatal(err)
		}
	}
}

// What cannot be read or written now comes again, and holds up no other.
func TestSomethingIsAway(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2)
	var there, away []int // by their search shard
	for n := range 20 {
		s.put(n, 1, "tea")
		if s.index.Of(keyOf(n)).ID == 0 {
			there = append(there, n)
		} else {
			away = append(away, n)
		}
	}
	s.set(func(i *instances) {
		i.fault[keyOf(there[0]).String()] = faults.ShardUnavailable(0, time.Second).ToProto()
	})
	s.down[1].Store(true)
	s.tell("wf.started", 1, append(there, away...)...)
	s.until("the others are indexed", func() bool { return s.found(there[1], "tea") && s.found(there[len(there)-1], "tea") })
	if s.found(there[0], "tea") || s.found(away[0], "tea") {
		t.Error("what is away was indexed")
	}
	if n, err := s.feed.Pending(t.Context()); err != nil || n != int64(1+len(away)) {
		t.Errorf("%d events wait, want %d: %v", n, 1+len(away), err)
	}
	s.down[1].Store(false)
	s.set(func(i *instances) { clear(i.fault) })
	s.drained()
	for _, n := range append(there, away...) {
		if !s.found(n, "tea") {
			t.Errorf("instance %d was forgotten", n)
		}
	}
	s.set(func(i *instances) { i.err = faults.Unavailable(0, "no router answers") })
	s.put(30, 1, "tea")
	s.tell("wf.started", 1, 30)
	s.until("the router is asked", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked > 25
	})
	s.set(func(i *instances) { i.err = nil })
	s.drained()
	if !s.found(30, "tea") {
		t.Error("an event was lost while no router answered")
	}
}

// A document that the database refuses is left out after some tries; those beside it are written.
func TestPoison(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	for _, pool := range s.pools {
		if _, err := pool.Exec(t.Context(), "alter table documents add check (workflow <> 'poison')"); err != nil {
			t.Fatal(err)
		}
	}
	var ns []int
	for n := range 12 {
		ns = append(ns, n)
		s.put(n, 1, "tea", func(in *wigglev1.Instance) {
			if n%5 == 0 {
				in.Workflow = "poison"
			}
		})
	}
	s.tell("wf.started", 1, ns...)
	s.drained()
	for _, n := range ns {
		if s.found(n, "tea") == (n%5 == 0) {
			t.Errorf("instance %d: found is %t", n, s.found(n, "tea"))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if want := 12 + 4*3; s.asked != want {
		t.Errorf("%d instances were read, want %d: five tries for each that is refused", s.asked, want)
	}
}
