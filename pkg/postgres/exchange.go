package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errNotCommitted: a function that was given an [Exchange] returned without a commit.
var errNotCommitted = errors.New("the transaction was left without a commit")

// Exchange is a transaction in as few round trips as it has batches: BEGIN travels with the first and COMMIT with the
// last. So what a batch finds out cannot keep a commit in the same batch from happening, unless it is an error of the
// server: that stops everything behind it.
type Exchange struct {
	pool      *Pool
	conn      *pgxpool.Conn
	op        string
	begin     []string
	begun     bool
	committed bool
}

// Exchange runs fn with a transaction, which fn ends with [Exchange.Commit]. It is rolled back when fn returns an error
// or panics. fn may run several times, and errors are as those of [Pool.InTx].
func (p *Pool) Exchange(ctx context.Context, opts TxOptions, fn func(ctx context.Context, x *Exchange) error) error {
	return p.repeat(ctx, opts, func(ctx context.Context, op, begin string) error {
		conn, err := p.acquire(ctx, op)
		if err != nil {
			return err
		}
		defer conn.Release()
		x := &Exchange{pool: p, conn: conn, op: op, begin: strings.Split(begin, "; ")}
		defer x.end(ctx)
		if err := fn(ctx, x); err != nil {
			if isStorage(err) {
				return p.wrap(op, err, phaseTx)
			}
			return err
		}
		if !x.committed {
			return errNotCommitted
		}
		return nil
	})
}

// Do sends a batch and reads its results, which go to the callbacks of its queries.
func (x *Exchange) Do(ctx context.Context, b *pgx.Batch) error {
	return x.pool.wrap(x.op, x.send(ctx, b), phaseTx)
}

// Commit sends a batch, which may be empty, and commits. Once it is sent, the end of ctx no longer interrupts it;
// CommitTimeout does.
func (x *Exchange) Commit(ctx context.Context, b *pgx.Batch) error {
	if ctx.Err() != nil {
		return x.pool.newError(x.op, Interrupted, ctx.Err())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.pool.cfg.CommitTimeout)
	defer cancel()
	var tag pgconn.CommandTag
	b.Queue("commit").Exec(func(t pgconn.CommandTag) error { tag = t; return nil })
	data := x.conn.Conn().PgConn().CustomData()
	delete(data, syncWaitKey)
	x.committed = true
	switch err := x.send(ctx, b); {
	case err != nil:
		return x.pool.wrap(x.op, err, phaseCommit)
	case tag.String() != "COMMIT":
		return x.pool.newError(x.op, Permanent, pgx.ErrTxCommitRollback)
	case data[syncWaitKey] != nil:
		return x.pool.newError(x.op, Unknown, errSyncWait)
	}
	return nil
}

func (x *Exchange) send(ctx context.Context, b *pgx.Batch) error {
	if !x.begun {
		x.begun = true
		all := &pgx.Batch{}
		for _, sql := range x.begin {
			all.Queue(sql)
		}
		all.QueuedQueries = append(all.QueuedQueries, b.QueuedQueries...)
		b = all
	}
	return x.conn.SendBatch(ctx, b).Close()
}

// end rolls back what is not committed. A connection that cannot do that is closed, and the server rolls back.
func (x *Exchange) end(ctx context.Context) {
	conn := x.conn.Conn()
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		_ = conn.Close(ctx)
	}
}

// Once sends a batch as a transaction of its own, in one round trip. A failure of class [Unknown] may have been applied.
func (p *Pool) Once(ctx context.Context, op string, b *pgx.Batch) error {
	conn, err := p.acquire(ctx, op)
	if err != nil {
		return err
	}
	defer conn.Release()
	data := conn.Conn().PgConn().CustomData()
	delete(data, syncWaitKey)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return p.wrap(op, err, phaseStatement)
	}
	if data[syncWaitKey] != nil {
		return p.newError(op, Unknown, errSyncWait)
	}
	return nil
}
