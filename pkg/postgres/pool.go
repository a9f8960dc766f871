package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool is the connections to one member of a shard. Its Exec, Query, QueryRow, SendBatch and CopyFrom are those of
// pgxpool, so generated query code takes it as is; on top they fail fast while the member is down, bound the wait for a
// connection, and return an [*Error]. A Pool is safe for concurrent use.
type Pool struct {
	cfg     MemberConfig
	raw     *pgxpool.Pool
	probe   *pgx.ConnConfig // for connections outside the pool: no observer
	beginTx string          // pooled mode: the SET LOCALs that follow BEGIN

	down        atomic.Pointer[downState] // non-nil while calls fail at once
	lastSuccess atomic.Int64              // unix nanoseconds
	lastReset   atomic.Int64

	mu      sync.Mutex // guards what follows
	health  Health
	probing bool
	closed  bool
	stop    context.CancelFunc
	probes  sync.WaitGroup
	stopCtx context.Context //nolint:containedctx // lifetime of the probes, ended by Close
}

// Open prepares the pool of a member. It does not connect, so it succeeds while the database is down; its only errors are
// those of the configuration, and they do not repeat the connection string. ctx lends its values to background
// connections; ending it does not close the pool, [Pool.Close] does.
func Open(ctx context.Context, cfg MemberConfig) (*Pool, error) {
	cfg = cfg.withDefaults()
	pc, err := cfg.poolConfig()
	if err != nil {
		return nil, fmt.Errorf("postgres %s: %w", cfg.Name, err)
	}
	p := &Pool{cfg: cfg, probe: pc.ConnConfig.Copy(), beginTx: cfg.pooledBegin()}
	p.health = Health{Name: cfg.Name, State: Untried, Since: time.Now()}
	p.stopCtx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	pc.ConnConfig.Tracer = withTracer(&observer{pool: p, spans: spans{member: cfg.Name, database: pc.ConnConfig.Database}}, cfg.Tracer)
	pc.ConnConfig.OnNotice = onNotice
	if p.raw, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		p.stop()
		return nil, fmt.Errorf("postgres %s: pool settings are refused", cfg.Name)
	}
	return p, nil
}

// Close ends the pool: waiting calls fail, and it returns when every connection has been given back and closed.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.probes.Wait()
	p.raw.Close()
}

// Name returns MemberConfig.Name.
func (p *Pool) Name() string { return p.cfg.Name }

// ReadOnly returns MemberConfig.ReadOnly.
func (p *Pool) ReadOnly() bool { return p.cfg.ReadOnly }

// MaxConns returns the most connections that the pool opens, for the sum an operator needs (SHD-15).
func (p *Pool) MaxConns() int { return p.cfg.MaxConns }

// Raw returns the pgx pool underneath for what this type does not offer. Its errors are not classified or
// sanitised, and it does not fail fast; pass what leaves through [Classify].
func (p *Pool) Raw() *pgxpool.Pool { return p.raw }

// Stat returns the pool's counters.
func (p *Pool) Stat() *pgxpool.Stat { return p.raw.Stat() }

// Reset closes all idle connections, and those in use when they are given back.
func (p *Pool) Reset() { p.raw.Reset() }

// Acquire takes a connection out of the pool, waiting at most AcquireTimeout. The caller must Release it.
func (p *Pool) Acquire(ctx context.Context) (*pgxpool.Conn, error) { return p.acquire(ctx, "acquire") }

func (p *Pool) acquire(ctx context.Context, op string) (*pgxpool.Conn, error) {
	if d := p.down.Load(); d != nil {
		return nil, d.fail(p, op)
	}
	waitCtx, cancel := context.WithTimeoutCause(ctx, p.cfg.AcquireTimeout, errNoFreeConn)
	defer cancel()
	conn, err := p.raw.Acquire(waitCtx)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, p.newError(op, Interrupted, ctx.Err())
	case waitCtx.Err() != nil && errors.Is(context.Cause(waitCtx), errNoFreeConn):
		return nil, p.newError(op, Unavailable, errNoFreeConn)
	}
	return nil, p.wrap(op, err, phaseConnect)
}

// Ping checks that a connection can be had and answers. Unlike other calls it tries even while the pool is down.
func (p *Pool) Ping(ctx context.Context) error {
	if err := p.raw.Ping(ctx); err != nil {
		return p.wrap("ping", err, phaseConnect)
	}
	return nil
}

// Exec runs a statement in a transaction of its own. A failure of class [Unknown] may have been applied.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	conn, err := p.acquire(ctx, "exec")
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer conn.Release()
	tag, err := conn.Exec(ctx, sql, args...)
	return tag, p.wrap("exec", err, phaseStatement)
}

// Query runs a statement and returns its rows, which must be closed.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := p.acquire(ctx, "query")
	if err != nil {
		return failedRows{err: err}, err
	}
	r, err := conn.Query(ctx, sql, args...)
	if err != nil {
		conn.Release()
		err = p.wrap("query", err, phaseStatement)
		return failedRows{err: err}, err
	}
	return &rows{Rows: r, pool: p, conn: conn}, nil
}

// QueryRow runs a statement that returns one row; errors, pgx.ErrNoRows among them, come from Scan.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	conn, err := p.acquire(ctx, "query")
	if err != nil {
		return failedRows{err: err}
	}
	return &row{row: conn.QueryRow(ctx, sql, args...), pool: p, conn: conn}
}

// SendBatch sends several statements in one round trip. Without BEGIN in it they share one implicit transaction.
func (p *Pool) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	conn, err := p.acquire(ctx, "batch")
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return &batchResults{BatchResults: conn.SendBatch(ctx, b), pool: p, conn: conn}
}

// CopyFrom bulk-loads rows in a transaction of its own and returns their number.
func (p *Pool) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	conn, err := p.acquire(ctx, "copy")
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	n, err := conn.Conn().CopyFrom(ctx, table, columns, src)
	return n, p.wrap("copy", err, phaseStatement)
}
