package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// State is what is believed of a replica; the package comment draws the transitions.
type State int

const (
	// Untried means that it was not probed yet.
	Untried State = iota
	// Serving means that reads go to it.
	Serving
	// Lagging means that it follows the primary, and lags by more than its bound or by what cannot be told.
	Lagging
	// Failed means that a probe or a query failed.
	Failed
	// Refused means that it is not a replica of the shard's primary.
	Refused
)

// String returns the state in lower case.
func (s State) String() string {
	names := [...]string{"untried", "serving", "lagging", "failed", "refused"}
	if s < 0 || int(s) >= len(names) {
		return "invalid state"
	}
	return names[s]
}

const (
	// Interval is the pause between two probes, and between two beats.
	Interval = time.Second
	// probeTimeout bounds a probe, with connecting.
	probeTimeout = 2 * time.Second
	// probeStatement bounds its statement.
	probeStatement = time.Second
	// readStatement is the statement_timeout of reads.
	readStatement = 10 * time.Second
)

// readReplica is the one statement that a second costs a replica. None of the three timelines is always there: of the last
// restart point, of what was replayed and flushed last, of what is being received (for roles that may see it). A replica
// stays on a timeline or goes to one that follows it, so the latest is what it is on.
const readReplica = `select h.beat, h.beaten_at, pg_is_in_recovery(), coalesce(pg_last_wal_replay_lsn()::text, ''),
	greatest((pg_control_checkpoint()).timeline_id, (pg_control_recovery()).min_recovery_end_timeline,
		(select received_tli from pg_stat_wal_receiver))
from wiggle_heartbeat h`

// view is what a probe found. It does not change.
type view struct {
	state    State
	reason   string
	beat     int64
	beatenAt time.Time
	age      age
	replayed string
	probedAt time.Time // when the probe began
}

// member is one replica.
type member struct {
	set    *Set
	index  int
	zone   string
	maxLag time.Duration
	reads  *postgres.Pool
	probes *postgres.Pool
	waker  *lifecycle.Waker
	log    *slog.Logger

	served   atomic.Int64
	promoted atomic.Bool

	now   atomic.Pointer[view]
	mu    sync.Mutex // of changes of now
	fails int        // how often reads have failed
}

// newMember opens the pools of a replica: of its connections one is for probes, the others for reads.
func newMember(ctx context.Context, s *Set, m topology.Member) (*member, error) {
	r := &member{
		set: s, index: m.Index, zone: m.Zone, maxLag: m.MaxLag, waker: lifecycle.NewWaker(),
		log: s.cfg.Logger.With("shard", s.shard, "replica", m.Index),
	}
	r.now.Store(&view{reason: reasonUnprobed})
	if m.MaxLag < 2*s.cfg.Interval {
		r.log.Warn("the replica's bound is shorter than two heartbeats: it will be out of use between them", "bound", m.MaxLag)
	}
	cfg := s.cfg.Member(m, max(m.Pool-1, 1))
	cfg.ReadOnly, cfg.OnConnect, cfg.Tracer = true, r.check, &standby{r}
	if cfg.StatementTimeout == 0 {
		cfg.StatementTimeout = readStatement
	}
	var err error
	if r.reads, err = postgres.Open(ctx, cfg); err != nil {
		return nil, err
	}
	probe := postgres.MemberConfig{
		Name: cfg.Name + " probe", URL: cfg.URL, User: cfg.User, Password: cfg.Password, MaxConns: 1, ReadOnly: true,
		ConnectTimeout: probeStatement, AcquireTimeout: probeTimeout, StatementTimeout: probeStatement,
		ApplicationName: cfg.ApplicationName, TransactionPooler: cfg.TransactionPooler,
		OnConnect: r.check, Tracer: s.cfg.ProbeTracer,
		OnState: func(h postgres.Health) {
			if h.State == postgres.Up {
				r.waker.Wake()
			}
		},
	}
	if r.probes, err = postgres.Open(ctx, probe); err != nil {
		r.reads.Close()
		return nil, err
	}
	return r, nil
}

func (m *member) close() {
	m.reads.Close()
	m.probes.Close()
}

// loop probes again and again.
func (m *member) loop() lifecycle.Loop {
	return lifecycle.Loop{
		Interval: m.set.cfg.Interval, Immediate: true, Timeout: probeTimeout, Waker: m.waker, RunOnce: m.probe,
	}
}

// probe asks the replica once. Its error is that of a replica that is failed or refused, which is to be asked less often.
func (m *member) probe(ctx context.Context) error {
	m.mu.Lock()
	failsBefore, promoted := m.fails, m.promoted.Load()
	m.mu.Unlock()
	found := &view{probedAt: m.set.cfg.Clock.Now()}
	var (
		standby  bool
		timeline int32
	)
	err := m.probes.QueryRow(ctx, readReplica).Scan(&found.beat, &found.beatenAt, &standby, &found.replayed, &timeline)
	if err == nil {
		err = m.follows(found, standby, timeline)
	}
	if err == nil {
		m.judge(found)
	} else {
		found.state, found.reason = failed(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails != failsBefore && found.state != Refused {
		return errReadFailed // while this probe was under way: the next one tells
	}
	if promoted && err == nil {
		m.promoted.Store(false) // it was made a replica again
	}
	m.enter(found)
	return err
}

var errReadFailed = errors.New("a read failed")

// failed is the state after an error, and its reason in safe words.
func failed(err error) (State, string) {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.state, r.reason
	}
	if errors.Is(err, pgx.ErrNoRows) || postgres.IsUndefinedTable(err) {
		return Failed, "it has no heartbeat yet"
	}
	if e, ok := errors.AsType[*postgres.Error](err); ok {
		return Failed, e.Reason
	}
	return Failed, "it gave no answer that can be read"
}

// follows refuses a server that is no replica of the primary.
func (m *member) follows(v *view, standby bool, timeline int32) error {
	_, primary, known := m.set.primary.identity()
	here, other := m.set.primary.seen(v.beat, v.beatenAt)
	switch {
	case !standby:
		return refused(reasonPromoted)
	case other:
		return refused("its history is not the primary's: they have another beat under the same number")
	case known && (timeline > primary || timeline < primary && !here):
		return wrongTimeline(timeline, primary)
	}
	return nil
}

// judge tells how far a replica lags that follows its primary.
func (m *member) judge(v *view) {
	last := m.set.primary.age(v.beat, v.beatenAt, v.probedAt)
	v.age = last
	switch {
	case !last.known && last.skew != 0:
		v.state = Lagging
		v.reason = fmt.Sprintf("how far it lags cannot be told: the time of its heartbeat is off by %v", rounded(last.skew.Abs()))
	case !last.known:
		v.state, v.reason = Lagging, "how far it lags cannot be told: "+reasonUntold
	case last.lag <= m.maxLag:
		v.state = Serving
	case m.set.primary.latest() == v.beat:
		v.state = Lagging
		v.reason = fmt.Sprintf("how far it lags cannot be told: the last heartbeat, on the primary too, is %v old; is there a leader?",
			rounded(last.lag))
	default:
		v.state, v.reason = Lagging, fmt.Sprintf("it lags by %v, more than %v", rounded(last.lag), m.maxLag)
	}
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// enter changes the view; m.mu is held.
func (m *member) enter(v *view) {
	was := m.now.Swap(v)
	if (v.age.skew != 0) != (was.age.skew != 0) && v.state != Failed {
		m.tellSkew(v.age.skew)
	}
	if was.state == v.state {
		return
	}
	level := slog.LevelInfo
	if v.state == Refused || v.state == Failed || was.state == Serving {
		level = slog.LevelWarn
	}
	m.log.Log(context.Background(), level, "replica changed state", "from", was.state.String(), "to", v.state.String(),
		"reason", v.reason, "lag", v.age.lag)
}

func (m *member) tellSkew(skew time.Duration) {
	if skew == 0 {
		m.log.Info("the times of heartbeats fit again")
		return
	}
	m.log.Warn("the times of heartbeats do not fit what was seen of them: a clock is wrong; lag is told by what was seen",
		"skew", skew)
}

// leave takes the replica out of use until a probe finds it well.
func (m *member) leave(state State, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails++
	v := *m.now.Load()
	v.state, v.reason = state, reason
	m.enter(&v)
}

// forget closes all connections, because the primary is another one than before, or the first: each is checked anew.
func (m *member) forget() {
	m.leave(Untried, reasonUnprobed)
	m.reads.Reset()
	m.probes.Reset()
	m.waker.Wake()
}

// lag is how old the replica's newest beat is at a time, and whether reads may go to it. Until a probe says otherwise a
// replica may be used for one beat beyond its bound: so the age of what it was told between two beats does not count, and
// one whose probes hang leaves all the same.
func (m *member) lag(now time.Time, need Need) (time.Duration, bool) {
	v := m.now.Load()
	if v.state != Serving {
		return 0, false
	}
	lag := v.age.lag + max(now.Sub(v.probedAt), 0)
	if lag > m.maxLag+m.set.cfg.Interval {
		return lag, false
	}
	fresh := need.NotBefore.IsZero() || v.age.skew == 0 && !v.beatenAt.Before(need.NotBefore)
	return lag, fresh
}

// try has a read answered by the replica. An error is the replica's, unless ctx is over.
func (m *member) try(ctx context.Context, from Source, read func(context.Context, Source) error) error {
	within, cancel := context.WithTimeout(ctx, m.share(ctx))
	defer cancel()
	err := read(within, from)
	if m.promoted.Load() {
		m.leave(Refused, reasonPromoted)
		return refused(reasonPromoted)
	}
	switch {
	case err == nil:
		m.served.Add(1)
		return nil
	case ctx.Err() != nil, errors.Is(err, ErrNotHere):
		return err
	}
	if _, ok := errors.AsType[*refusal](err); ok {
		m.leave(failed(err))
		return err
	}
	switch postgres.Classify(err) {
	case postgres.Unavailable, postgres.Unknown, postgres.ReadOnly:
		m.leave(failed(err))
	default: // this read's own trouble: in the way of what is replayed, not answered in its time, or not to be answered at all
	}
	return err
}

// share is how long one replica may take: half of what is left, so that another server can still answer.
func (m *member) share(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(time.Until(end)/2, readStatement)
	}
	return readStatement
}
