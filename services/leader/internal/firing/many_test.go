package firing_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/leader/internal/firing"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedule"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedulestore"
)

// counter counts statements.
type counter struct{ statements atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.statements.Add(1)
	return ctx
}
func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// sized notes how much is due at a time.
type sized struct {
	firing.Store

	batches, rows, bytes int
}

func (s *sized) Due(ctx context.Context, limit, bytes int) (schedulestore.Batch, error) {
	batch, err := s.Store.Due(ctx, limit, bytes)
	size := 0
	for _, row := range batch.Rows {
		size += proto.Size(row.Schedule)
	}
	s.batches++
	s.rows, s.bytes = max(s.rows, len(batch.Rows)), max(s.bytes, size)
	return batch, err
}

// TestMany: ten thousand schedules that are due at once are fired by some statements and calls for each five hundred (EVT-8).
func TestMany(t *testing.T) {
	t.Parallel()
	const many = 10_000
	count := &counter{}
	s := newScene(t, func(c *postgres.MemberConfig) { c.Tracer = count })
	text, err := proto.Marshal(minutely("s", skip))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < many; i += 1000 {
		insert(t, s, i, 1000, text)
	}
	store := &sized{Store: s.store}
	l := s.leader(1, store)
	s.at(time.Minute)
	count.statements.Store(0)
	began := time.Now()
	l.settle()
	t.Logf("%d schedules in %v, %d statements, %d calls", many, time.Since(began), count.statements.Load(), s.router.calls)
	if got := len(s.router.order); got != many {
		t.Errorf("%d instances", got)
	}
	if n := count.statements.Load(); n > 6*many/500+12 || store.rows > 500 || s.router.calls > many/500+1 || s.router.largest > 500 {
		t.Errorf("%d statements, %d calls, at most %d rows at a time and %d starts", n, s.router.calls, store.rows, s.router.largest)
	}
	var fired int
	if err := s.pool.QueryRow(t.Context(), "select count(*) from schedules where fired = 1 and wake_at = next_at").Scan(&fired); err != nil || fired != many {
		t.Errorf("%d were recorded, %v", fired, err)
	}
}

// insert makes rows as PutSchedule does, a thousand at a time.
func insert(t *testing.T, s *scene, from, n int, text []byte) {
	t.Helper()
	ids, texts := make([]string, n), make([][]byte, n)
	for i := range n {
		var p wigglev1.Schedule
		if err := proto.Unmarshal(text, &p); err != nil {
			t.Fatal(err)
		}
		p.Id = fmt.Sprintf("s%05d", from+i)
		own, err := proto.Marshal(&p)
		if err != nil {
			t.Fatal(err)
		}
		ids[i], texts[i] = p.GetId(), own
	}
	_, err := s.pool.Exec(t.Context(), `
		insert into schedules (namespace, id, revision, wake_at, next_at, from_at, created_at, updated_at, paused, workflow, schedule)
		select 'default', u.id, 1, $3, $3, $3, $3, $3, false, 'w', u.schedule from unnest($1::text[], $2::bytea[]) as u(id, schedule)`,
		ids, texts, noon.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
}

// TestLargeInputs: however large their inputs are, what is in memory at a time is bounded, and so is each call.
func TestLargeInputs(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i := range 24 {
		p := minutely(fmt.Sprint("s", i), allow)
		p.Input = &wigglev1.Payload{Data: make([]byte, 1<<20)}
		if i == 5 {
			p.Input.Data = make([]byte, 10<<20) // more than a batch, alone
		}
		s.put(p)
	}
	store := &sized{Store: s.store}
	s.at(time.Minute)
	s.leader(1, store).settle()
	if got := len(s.router.order); got != 24 || store.bytes > 10<<20+1000 || store.batches < 5 || s.router.largest > 3 {
		t.Errorf("%d instances, %d bytes at a time, %d batches, at most %d starts in a call", got, store.bytes, store.batches, s.router.largest)
	}
}

func compiled(t *testing.T, p *wigglev1.Schedule) *schedule.Times {
	t.Helper()
	times, problems := schedule.Compile(p, schedule.NewZones())
	if problems != nil {
		t.Fatal(problems)
	}
	return times
}

// TestRun: the loop wakes when a schedule is due by the database's clock, soon after one was put, and stops when it is told to.
func TestRun(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.store = schedulestore.New(s.pool)
	ctx, stop := context.WithCancel(t.Context())
	l := s.leader(1, s.store)
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx, 1) }()
	p := minutely("s", allow)
	p.When = &wigglev1.Schedule_Interval{Interval: &wigglev1.IntervalTimes{Every: durationpb.New(time.Second)}}
	_, _, err := s.store.Change(ctx, "default", "s", func(now time.Time, _ *schedulestore.Row) (*schedulestore.Row, error) {
		return &schedulestore.Row{Schedule: p, State: compiled(t, p).Begin(now)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Wake()
	for range 2 {
		<-s.router.started
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var late time.Duration
	if err := s.pool.QueryRow(t.Context(), "select clock_timestamp() - last_at from schedules").Scan(&late); err != nil || late > 2*time.Second {
		t.Errorf("the last is %v ago, %v", late, err)
	}
}
