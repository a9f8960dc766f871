package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// DefaultTxAttempts is how often [Pool.InTx] runs a transaction that keeps failing with [NotApplied].
	DefaultTxAttempts = 5

	txBackoffBase   = 4 * time.Millisecond
	txBackoffMax    = 200 * time.Millisecond
	rollbackTimeout = 2 * time.Second
)

// TxOptions are the settings of one transaction. The zero value is a read-write transaction at the server's default
// isolation and commit level.
type TxOptions struct {
	// Op names the transaction in errors, such as "report". Default "transaction".
	Op string
	// Isolation is the isolation level; empty for the server's default.
	Isolation pgx.TxIsoLevel
	// ReadOnly makes the transaction read only.
	ReadOnly bool
	// SynchronousCommit sets synchronous_commit for this transaction (REP-11): "off", "local", "on", "remote_write" or
	// "remote_apply"; empty for the server's default. It travels with BEGIN and costs no round trip.
	SynchronousCommit string
	// StatementTimeout and LockTimeout replace the pool's for this transaction when positive.
	StatementTimeout, LockTimeout time.Duration
	// MaxAttempts is how often the transaction is run at most. Default 5; 1 means no repeat.
	MaxAttempts int
}

// InTx runs fn in a transaction and commits it. It is rolled back when fn returns an error, panics or ctx ends.
//
// fn may run several times, so what it does outside the transaction must bear repeating: a failure of class [NotApplied],
// and a connection that broke before COMMIT was sent, are repeated after a jittered pause, MaxAttempts times in all.
// Once COMMIT is sent, the end of ctx no longer interrupts it; CommitTimeout does. If its answer is lost, or it
// was not confirmed by the standbys that it had to wait for, the error matches [ErrOutcomeUnknown].
//
// Errors of fn that do not come from the database are returned as they are.
func (p *Pool) InTx(ctx context.Context, opts TxOptions, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return p.repeat(ctx, opts, func(ctx context.Context, op, begin string) error { return p.tryTx(ctx, op, begin, fn) })
}

// repeat runs a transaction as often as its options allow.
func (p *Pool) repeat(ctx context.Context, opts TxOptions, try func(ctx context.Context, op, begin string) error) error {
	if opts.Op == "" {
		opts.Op = "transaction"
	}
	if opts.MaxAttempts == 0 {
		opts.MaxAttempts = DefaultTxAttempts
	}
	begin, err := p.beginSQL(opts)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := try(ctx, opts.Op, begin)
		if err == nil || attempt >= opts.MaxAttempts || Classify(err) != NotApplied || !pause(ctx, txBackoff(attempt)) {
			return err
		}
	}
}

func (p *Pool) tryTx(ctx context.Context, op, begin string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	conn, err := p.acquire(ctx, op)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin})
	if err != nil {
		return p.wrap(op, err, phaseTx)
	}
	committing := false
	defer func() {
		if !committing {
			rollback(ctx, tx)
		}
	}()
	if err := fn(ctx, tx); err != nil {
		if isStorage(err) {
			return p.wrap(op, err, phaseTx)
		}
		return err
	}
	if ctx.Err() != nil {
		return p.newError(op, Interrupted, ctx.Err())
	}
	committing = true
	return p.commit(ctx, op, tx)
}

// commit sends COMMIT and judges its answer.
func (p *Pool) commit(ctx context.Context, op string, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.CommitTimeout)
	defer cancel()
	data := tx.Conn().PgConn().CustomData()
	delete(data, syncWaitKey)
	err := tx.Commit(ctx)
	switch {
	case err == nil && data[syncWaitKey] != nil:
		return p.newError(op, Unknown, errSyncWait)
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return p.newError(op, Permanent, err)
	}
	return p.wrap(op, err, phaseCommit)
}

// rollback ends a transaction whose outcome does not matter. A failure closes the connection, and the server rolls back.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// beginSQL is BEGIN with all settings of the transaction in the same message.
func (p *Pool) beginSQL(opts TxOptions) (string, error) {
	var b strings.Builder
	b.WriteString("begin")
	if opts.Isolation != "" {
		b.WriteString(" isolation level " + string(opts.Isolation))
	}
	switch {
	case opts.ReadOnly, p.cfg.ReadOnly:
		b.WriteString(" read only")
	case p.cfg.TransactionPooler:
		b.WriteString(" read write")
	}
	b.WriteString(p.beginTx)
	switch opts.SynchronousCommit {
	case "":
	case "off", "local", "on", "remote_write", "remote_apply":
		b.WriteString("; set local synchronous_commit = " + opts.SynchronousCommit)
	default:
		return "", fmt.Errorf("postgres %s: unknown synchronous_commit %q", p.cfg.Name, opts.SynchronousCommit)
	}
	if opts.StatementTimeout > 0 {
		fmt.Fprintf(&b, "; set local statement_timeout = %d", max(1, opts.StatementTimeout.Milliseconds()))
	}
	if opts.LockTimeout > 0 {
		fmt.Fprintf(&b, "; set local lock_timeout = %d", max(1, opts.LockTimeout.Milliseconds()))
	}
	return b.String(), nil
}

// pooledBegin is what follows BEGIN where a pooler keeps the limits from being set at connect.
func (c MemberConfig) pooledBegin() string {
	if !c.TransactionPooler {
		return ""
	}
	statement, lock, idle := DefaultStatementTimeout, DefaultLockTimeout, DefaultIdleInTxTimeout
	if c.StatementTimeout > 0 {
		statement = c.StatementTimeout
	}
	if c.LockTimeout > 0 {
		lock = c.LockTimeout
	}
	if c.IdleInTxTimeout > 0 {
		idle = c.IdleInTxTimeout
	}
	return fmt.Sprintf("; set local statement_timeout = %d; set local lock_timeout = %d; "+
		"set local idle_in_transaction_session_timeout = %d",
		statement.Milliseconds(), lock.Milliseconds(), idle.Milliseconds())
}

// txBackoff is the pause after the given attempt: full jitter under a doubling bound.
func txBackoff(attempt int) time.Duration {
	bound := txBackoffMax
	if attempt < 6 {
		bound = min(txBackoffBase<<attempt, txBackoffMax)
	}
	return time.Millisecond + rand.N(bound) //nolint:gosec // jitter
}

var _ interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
	CopyFrom(context.Context, pgx.Identifier, []string, pgx.CopyFromSource) (int64, error)
} = (*Pool)(nil)
