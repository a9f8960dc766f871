package firing_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/leader/internal/firing"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedule"
	"github.com/wiggle-run/wiggle/services/leader/internal/scheduleapi"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedulestore"
	"github.com/wiggle-run/wiggle/services/leader/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// open opens a database with the leader's tables.
func open(t testing.TB, change ...func(*postgres.MemberConfig)) *postgres.Pool {
	t.Helper()
	set, key := migrations.Set(), "leader"
	names, err := fs.Glob(set.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(set.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		key += "/" + string(text)
	}
	url := pgtest.NewDatabaseFrom(t, key, func(ctx context.Context, url string) error {
		pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "template", URL: url})
		if err != nil {
			return err
		}
		defer pool.Close()
		_, err = postgres.Migrate(ctx, pool, set, postgres.Apply)
		return err
	})
	return pgtest.OpenPool(t, url, change...)
}

// noon is when tests begin.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// scene is a home shard with its schedules, a router, and a clock that the test moves.
type scene struct {
	t      *testing.T
	pool   *postgres.Pool
	store  *schedulestore.Store
	router *router
	api    *scheduleapi.Server

	mu  sync.Mutex
	now time.Time
}

func newScene(t *testing.T, change ...func(*postgres.MemberConfig)) *scene {
	t.Helper()
	s := &scene{t: t, pool: open(t, change...), now: noon, router: newRouter()}
	s.store = schedulestore.New(s.pool).WithNow(s.time)
	s.api = scheduleapi.New(s.store, scheduleapi.Config{
		Zones: schedule.NewZones(), Ready: func() bool { return true }, Changed: func() {},
	})
	return s
}

func (s *scene) time() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// at moves the clock to so long after noon.
func (s *scene) at(after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = noon.Add(after)
}

func (s *scene) put(p *wigglev1.Schedule) {
	s.t.Helper()
	if _, err := s.api.PutSchedule(s.t.Context(), &wigglev1.PutScheduleRequest{Schedule: p}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) status(id string) *wigglev1.ScheduleStatus {
	s.t.Helper()
	res, err := s.api.GetSchedule(s.t.Context(), &wigglev1.GetScheduleRequest{Id: id})
	if err != nil {
		s.t.Fatal(err)
	}
	return res.GetStatus()
}

// counts are what became of a schedule's due times.
func (s *scene) counts(id string, fired, skipped, missed int64) {
	s.t.Helper()
	if st := s.status(id); st.GetFired() != fired || st.GetSkipped() != skipped || st.GetMissed() != missed {
		s.t.Errorf("%v: %s fired %d, skipped %d, missed %d; want %d, %d, %d",
			s.time().Sub(noon), id, st.GetFired(), st.GetSkipped(), st.GetMissed(), fired, skipped, missed)
	}
}

// leader is a leader over the scene's store, or another in front of it.
type leader struct {
	*firing.Loop

	t    *testing.T
	term int64
}

func (s *scene) leader(term int64, store firing.Store) *leader {
	s.t.Helper()
	if store == nil {
		store = s.store
	}
	loop, err := firing.New(store, s.router, schedule.NewZones(), slog.New(slog.DiscardHandler), noop.Meter{})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.store.Take(s.t.Context(), term); err != nil {
		s.t.Fatal(err)
	}
	return &leader{Loop: loop, t: s.t, term: term}
}

// settle makes passes until nothing is due.
func (l *leader) settle() {
	l.t.Helper()
	for {
		more, _, err := l.Pass(l.t.Context(), l.term)
		if err != nil {
			l.t.Fatal(err)
		}
		if !more {
			return
		}
	}
}

// router starts instances, and remembers which.
type router struct {
	mu        sync.Mutex
	states    map[string]wigglev1.InstanceState // by id
	requests  map[string]*wigglev1.StartInstanceRequest
	order     []string // ulids in which they were started
	calls     int
	largest   int // call
	cancelled []string
	asked     int

	// Hooks may fail a call before it does something, and after it did.
	before, after func(*wigglev1.StartInstancesRequest) error
	refuse        func(*wigglev1.StartInstanceRequest) *faults.Error
	unknown       error // what GetInstance and CancelInstance answer
	started       chan string
}

func newRouter() *router {
	return &router{
		states: map[string]wigglev1.InstanceState{}, requests: map[string]*wigglev1.StartInstanceRequest{}, started: make(chan string, 100_000),
	}
}

func (r *router) StartInstances(_ context.Context, req *wigglev1.StartInstancesRequest) (*wigglev1.StartInstancesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	r.largest = max(r.largest, len(req.GetStarts()))
	if r.before != nil {
		if err := r.before(req); err != nil {
			return nil, err
		}
	}
	res := &wigglev1.StartInstancesResponse{}
	for _, start := range req.GetStarts() {
		res.Outcomes = append(res.Outcomes, r.start(start))
	}
	if r.after != nil {
		if err := r.after(req); err != nil {
			return nil, err
		}
	}
	return res, nil
}

func (r *router) start(start *wigglev1.StartInstanceRequest) *wigglev1.StartOutcome {
	if r.refuse != nil {
		if fault := r.refuse(start); fault != nil {
			return &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Fault{Fault: fault.ToProto()}}
		}
	}
	id := "wfi.s0." + start.GetUlid()
	_, known := r.states[id]
	if !known {
		r.states[id] = wigglev1.InstanceState_INSTANCE_STATE_RUNNING
		r.requests[start.GetUlid()] = start
		r.order = append(r.order, start.GetUlid())
		r.started <- id
	}
	return &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Started{
		Started: &wigglev1.StartInstanceResponse{InstanceId: id, Version: 1, Created: !known},
	}}
}

func (r *router) GetInstance(_ context.Context, req *wigglev1.GetInstanceRequest) (*wigglev1.GetInstanceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.unknown != nil {
		return nil, r.unknown
	}
	state, ok := r.states[req.GetInstanceId()]
	if !ok {
		return nil, faults.NotFound("instance", req.GetInstanceId())
	}
	return &wigglev1.GetInstanceResponse{Instance: &wigglev1.Instance{Id: req.GetInstanceId(), State: state}}, nil
}

func (r *router) CancelInstance(_ context.Context, req *wigglev1.CancelInstanceRequest) (*wigglev1.CancelInstanceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unknown != nil {
		return nil, r.unknown
	}
	state, ok := r.states[req.GetInstanceId()]
	switch {
	case !ok:
		return nil, faults.NotFound("instance", req.GetInstanceId())
	case state == wigglev1.InstanceState_INSTANCE_STATE_COMPLETED:
		return nil, faults.WrongState(req.GetInstanceId(), "COMPLETED")
	}
	r.states[req.GetInstanceId()] = wigglev1.InstanceState_INSTANCE_STATE_CANCELLED
	r.cancelled = append(r.cancelled, req.GetInstanceId())
	return &wigglev1.CancelInstanceResponse{State: wigglev1.InstanceState_INSTANCE_STATE_CANCELLED}, nil
}

// end completes all instances.
func (r *router) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, state := range r.states {
		if state == wigglev1.InstanceState_INSTANCE_STATE_RUNNING {
			r.states[id] = wigglev1.InstanceState_INSTANCE_STATE_COMPLETED
		}
	}
}

// set changes the router while calls may be under way.
func (r *router) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// startedAt are the times of the instances that were started, in order, as so long after noon.
func (r *router) startedAt(t *testing.T) string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for _, u := range r.order {
		list = append(list, ulidTime(t, u).Sub(noon).String())
	}
	return strings.Join(list, " ")
}

// flaky is a store whose calls may fail, before they do something or after they did.
type flaky struct {
	firing.Store

	beforeRecord, afterRecord, beforeDue func() error
}

func hook(h func() error) error {
	if h == nil {
		return nil
	}
	return h()
}

func (f *flaky) Due(ctx context.Context, limit, bytes int) (schedulestore.Batch, error) {
	if err := hook(f.beforeDue); err != nil {
		return schedulestore.Batch{}, err
	}
	return f.Store.Due(ctx, limit, bytes)
}

func (f *flaky) Record(ctx context.Context, term int64, outcomes []schedulestore.Outcome) error {
	if err := hook(f.beforeRecord); err != nil {
		return err
	}
	if err := f.Store.Record(ctx, term, outcomes); err != nil {
		return err
	}
	return hook(f.afterRecord)
}

var errCut = errors.New("cut off")
