package rebuild_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/index"
	"github.com/wiggle-run/wiggle/services/search/internal/rebuild"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
	"github.com/wiggle-run/wiggle/services/search/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// scene is a cluster of instances on shards 0 and 7, and an index of two search shards.
type scene struct {
	*testing.T
	*rebuild.Rebuilder

	index *index.Index
	down  *atomic.Bool // the first search shard

	mu        sync.Mutex
	instances map[document.Key]*wigglev1.Instance
	scans     int
	fail      func(scan int) error
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, instances: map[document.Key]*wigglev1.Instance{}, down: &atomic.Bool{}}
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
		pool := pgtest.OpenPool(t, url, searchstore.Configure)
		parts = append(parts, &index.Shard{
			ID: 20 + i, Store: searchstore.New(pool, "simple"), Ready: func() bool { return i > 0 || !s.down.Load() },
		})
	}
	var err error
	if s.index, err = index.New(parts); err != nil {
		t.Fatal(err)
	}
	s.Rebuilder = rebuild.New(s.index, s, []int{0, 7}, slog.New(slog.DiscardHandler))
	return s
}

func keyOf(n int) document.Key {
	key := document.Key{Shard: 7 * (n % 2), ULID: [16]byte{1}}
	binary.BigEndian.PutUint64(key.ULID[8:], uint64(n))
	return key
}

var created = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// instance makes the n-th instance as a cluster has it.
func instance(n int, revision int32) *wigglev1.Instance {
	in := &wigglev1.Instance{
		Id: keyOf(n).String(), Namespace: fmt.Sprintf("n%d", n%3), Workflow: "order", Revision: revision,
		State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING, CreatedAt: timestamppb.New(created),
		Context: &wigglev1.Payload{Data: fmt.Appendf(nil, `"text of %d at %d"`, n, revision)},
	}
	if revision > 1 {
		in.EndedAt, in.State = timestamppb.New(created), wigglev1.InstanceState_INSTANCE_STATE_COMPLETED
	}
	return in
}

func (s *scene) start(n int, revision int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[keyOf(n)] = instance(n, revision)
}

func (s *scene) write(on *index.Shard, in *wigglev1.Instance) {
	s.Helper()
	d, err := document.From(in)
	if err != nil {
		s.Fatal(err)
	}
	if on == nil {
		on = s.index.Of(d.Key)
	}
	if _, err := on.Store.Upsert(s.Context(), []*document.Document{d}); err != nil {
		s.Fatal(postgres.Detail(err))
	}
}

func (s *scene) Get(_ context.Context, refs []*wigglev1.InstanceRef) ([]*wigglev1.InstanceOutcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var outcomes []*wigglev1.InstanceOutcome
	for _, ref := range refs {
		key, err := document.ParseKey(ref.GetInstanceId())
		if err != nil {
			return nil, err
		}
		if in := s.instances[key]; in != nil {
			outcomes = append(outcomes, &wigglev1.InstanceOutcome{Outcome: &wigglev1.InstanceOutcome_Instance{Instance: proto.CloneOf(in)}})
			continue
		}
		fault := faults.NotFound("instance", ref.GetInstanceId()).ToProto()
		outcomes = append(outcomes, &wigglev1.InstanceOutcome{Outcome: &wigglev1.InstanceOutcome_Fault{Fault: fault}})
	}
	return outcomes, nil
}

func (s *scene) Scan(_ context.Context, req *internalv1.ScanInstancesRequest) (*internalv1.ScanInstancesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scans++
	if s.fail != nil {
		if err := s.fail(s.scans); err != nil {
			return nil, err
		}
	}
	var found []*wigglev1.Instance
	for key, in := range s.instances {
		if key.Shard == int(req.GetShard()) && in.GetId() > req.GetAfterInstanceId() &&
			(req.GetNamespace() == "" || in.GetNamespace() == req.GetNamespace()) {
			in = proto.CloneOf(in)
			if req.GetHeadsOnly() {
				in.Context = nil
			}
			found = append(found, in)
		}
	}
	slices.SortFunc(found, func(a, b *wigglev1.Instance) int { return strings.Compare(a.GetId(), b.GetId()) })
	limit := min(int(req.GetLimit()), 100)
	return &internalv1.ScanInstancesResponse{Instances: found[:min(limit, len(found))], Last: len(found) <= limit}, nil
}

func (s *scene) Count(_ context.Context, namespace, _ string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int64(0)
	for _, in := range s.instances {
		if in.GetNamespace() == namespace {
			n++
		}
	}
	return n, nil
}

func (s *scene) documents() int64 {
	s.Helper()
	total := int64(0)
	for _, shard := range s.index.Shards {
		n, err := shard.Store.Count(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		total += n
	}
	return total
}

func (s *scene) reindex(req *wigglev1.ReindexRequest, seen func(*wigglev1.ReindexResponse) error) (*wigglev1.ReindexResponse, error) {
	var last *wigglev1.ReindexResponse
	err := s.Reindex(s.Context(), req, func(res *wigglev1.ReindexResponse) error {
		if last != nil && res.GetRead() < last.GetRead() || res.GetRead() > res.GetTotal() {
			s.Errorf("%v follows %v", res, last)
		}
		last = proto.CloneOf(res)
		if seen != nil {
			return seen(res)
		}
		return nil
	})
	return last, err
}

func (s *scene) verify(repair bool) *wigglev1.VerifyResponse {
	s.Helper()
	var last *wigglev1.VerifyResponse
	err := s.Verify(s.Context(), &wigglev1.VerifyRequest{Repair: repair}, func(res *wigglev1.VerifyResponse) error {
		last = proto.CloneOf(res)
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	if !last.GetDone() {
		s.Errorf("it is not done: %v", last)
	}
	return last
}

// A reindex writes what is missing or older, and only that.
func TestReindex(t *testing.T) { // SRC-8
	t.Parallel()
	s := newScene(t)
	for n := range 450 {
		s.start(n, 2)
		switch n % 3 {
		case 0:
			s.write(nil, instance(n, 1))
		case 1:
			s.write(nil, instance(n, 2))
		}
	}
	last, err := s.reindex(&wigglev1.ReindexRequest{Rate: 1_000_000}, nil)
	if err != nil || !last.GetDone() || last.GetRead() != 450 || last.GetWritten() != 300 || last.GetResume() != "" {
		t.Errorf("got %v, %v", last, err)
	}
	if v := s.verify(false); v.GetCompared() != 450 || v.GetMissing()+v.GetStale()+v.GetOrphaned() != 0 {
		t.Errorf("afterwards: %v", v)
	}
	last, err = s.reindex(&wigglev1.ReindexRequest{Rate: 1_000_000, Namespace: "n1"}, nil)
	if err != nil || last.GetRead() != 150 || last.GetWritten() != 0 || last.GetTotal() != 150 {
		t.Errorf("of one namespace again: %v, %v", last, err)
	}
}

// Wherever it is broken off, a reindex goes on there: it reads every instance once, and its figures go on too.
func TestReindexResumes(t *testing.T) { // SRC-8
	t.Parallel()
	s := newScene(t)
	const total = 700
	for n := range total {
		s.start(n, 1)
	}
	errStop := errors.New("stop")
	req, runs := &wigglev1.ReindexRequest{Rate: 1_000_000}, 0
	for ; runs < 100; runs++ {
		messages := 0
		last, err := s.reindex(req, func(res *wigglev1.ReindexResponse) error {
			if res.GetResume() != "" {
				req.Resume = res.GetResume()
			}
			if messages++; messages == 3 {
				return errStop
			}
			return nil
		})
		if err == nil {
			if last.GetRead() != total || last.GetWritten() != total {
				t.Errorf("in the end: %v", last)
			}
			break
		}
		if !errors.Is(err, errStop) {
			t.Fatal(err)
		}
	}
	if runs < 3 || s.documents() != total {
		t.Errorf("after %d runs there are %d documents", runs, s.documents())
	}
	for name, req := range map[string]*wigglev1.ReindexRequest{
		"no text of ours":   {Resume: "x"},
		"another namespace": {Resume: req.GetResume(), Namespace: "n1"},
		"broken":            {Resume: req.GetResume()[1:]},
	} {
		if _, err := s.reindex(req, nil); !errors.Is(err, faults.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A rebuild waits for what is away for a while, keeps to its rate, and runs once at a time.
func TestPatience(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for n := range 300 {
		s.start(n, 1)
	}
	s.fail = func(scan int) error {
		if scan%2 == 1 {
			return faults.Unavailable(0, "the shard is away")
		}
		return nil
	}
	s.down.Store(true)
	began := time.Now()
	last, err := s.reindex(&wigglev1.ReindexRequest{Rate: 1000}, func(res *wigglev1.ReindexResponse) error {
		s.down.Store(false)
		if _, err := s.reindex(&wigglev1.ReindexRequest{}, nil); !errors.Is(err, faults.ErrFailedPrecondition) {
			t.Errorf("a second one at the same time: %v", err)
		}
		return nil
	})
	if err != nil || last.GetWritten() != 300 {
		t.Errorf("got %v, %v", last, err)
	}
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("300 instances at 1000 a second took %v", took)
	}
	s.fail = func(int) error { return faults.NotFound("shard", "0") }
	if _, err := s.reindex(&wigglev1.ReindexRequest{}, nil); !errors.Is(err, faults.ErrNotFound) {
		t.Errorf("what does not come back is told at once: %v", err)
	}
}

// A comparison finds each kind of difference, names some, mends them, and then finds none.
func TestVerify(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for n := range 320 {
		s.start(n, 2)
		switch {
		case n%40 == 0: // missing
		case n%40 == 1:
			s.write(nil, instance(n, 1)) // stale
		default:
			s.write(nil, instance(n, 2))
		}
	}
	for n := 1000; n < 1005; n++ {
		s.write(nil, instance(n, 2)) // without an instance
	}
	for _, shard := range s.index.Shards { // where it does not belong
		s.write(shard, instance(5, 2))
	}
	want := &wigglev1.VerifyResponse{Compared: 320, Missing: 8, Stale: 8, Orphaned: 6, Total: 320, Done: true}
	got := s.verify(false)
	if len(got.GetExamples()) != 20 {
		t.Errorf("it names %v", got.GetExamples())
	}
	if got.Examples = nil; !proto.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	want.Repaired = 22
	got = s.verify(true)
	if got.Examples = nil; !proto.Equal(got, want) {
		t.Errorf("repaired %v, want %v", got, want)
	}
	if got = s.verify(false); got.GetMissing()+got.GetStale()+got.GetOrphaned() != 0 || s.documents() != 320 {
		t.Errorf("afterwards: %v, with %d documents", got, s.documents())
	}
}

// What happened a moment ago is the indexer's, not a difference; nor is an instance that came between two readings.
func TestVerifyLeavesTheIndexerTime(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	now := timestamppb.New(time.Now().Add(time.Minute)) // within the test's time
	s.mu.Lock()
	fresh, over := instance(1, 1), instance(2, 2)
	fresh.CreatedAt, over.EndedAt = now, now
	s.instances[keyOf(1)], s.instances[keyOf(2)] = fresh, over
	s.mu.Unlock()
	s.write(nil, instance(2, 1))
	s.fail = func(scan int) error { // once the heads of a shard are read, an instance comes and is indexed
		if scan == 2 {
			s.instances[keyOf(4)] = instance(4, 1)
			s.write(nil, instance(4, 1))
		}
		return nil
	}
	if got := s.verify(true); got.GetMissing()+got.GetStale()+got.GetOrphaned()+got.GetRepaired() != 0 {
		t.Errorf("found %v", got)
	}
}
