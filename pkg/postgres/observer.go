package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// observer is the tracer through which a pool learns from all traffic, batches and copies included, how its member is,
// and by which statements get their spans.
type observer struct {
	pool  *Pool
	spans spans
}

var (
	_ pgx.QueryTracer    = (*observer)(nil)
	_ pgx.BatchTracer    = (*observer)(nil)
	_ pgx.CopyFromTracer = (*observer)(nil)
	_ pgx.PrepareTracer  = (*observer)(nil)
	_ pgx.ConnectTracer  = (*observer)(nil)
)

func (o *observer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return o.spans.query(ctx, data.SQL)
}

func (o *observer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	o.spans.end(ctx, data.Err)
	o.statement(ctx, data.Err)
}

func (o *observer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	return o.spans.batch(ctx, data.Batch)
}

func (o *observer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (o *observer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	o.spans.end(ctx, data.Err)
	o.statement(ctx, data.Err)
}

func (o *observer) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceCopyFromStartData) context.Context {
	return o.spans.copy(ctx, data.TableName)
}

func (o *observer) TraceCopyFromEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceCopyFromEndData) {
	o.spans.end(ctx, data.Err)
	o.statement(ctx, data.Err)
}

func (o *observer) TracePrepareStart(ctx context.Context, _ *pgx.Conn, _ pgx.TracePrepareStartData) context.Context {
	return ctx
}

func (o *observer) TracePrepareEnd(ctx context.Context, _ *pgx.Conn, data pgx.TracePrepareEndData) {
	if data.Err != nil {
		o.statement(ctx, data.Err)
	}
}

func (o *observer) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return ctx
}

func (o *observer) TraceConnectEnd(ctx context.Context, data pgx.TraceConnectEndData) {
	switch {
	case data.Err == nil:
		o.pool.succeeded()
	case errors.Is(ctx.Err(), context.Canceled) || isFull(data.Err):
		// The pool is closing, or the server is alive but full.
	default:
		o.pool.failed(data.Err, true)
	}
}

// statement judges the end of a statement: most errors are the statement's own and show that the server is well.
func (o *observer) statement(ctx context.Context, err error) {
	switch {
	case err == nil:
		o.pool.succeeded()
	case lostRole(err) && (!isReadOnly(err) || !o.pool.cfg.ReadOnly):
		o.pool.failed(err, false)
	case isPgError(err):
		o.pool.succeeded()
	case isBroken(err) && ctx.Err() == nil:
		o.pool.failed(err, false)
	}
}

// lostRole reports answers after which no connection of the pool can be trusted to lead to the right server.
func lostRole(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	switch pgErr.Code {
	case stateReadOnly, stateAdminShutdown, stateCrashShutdown, stateCannotConnectNow:
		return true
	}
	return strings.HasPrefix(pgErr.Code, "08")
}

func isPgError(err error) bool {
	_, ok := errors.AsType[*pgconn.PgError](err)
	return ok
}

// syncWaitKey marks a connection whose commit stopped waiting for its standbys.
const syncWaitKey = "wiggle.sync_wait_given_up"

// onNotice finds the warning with which PostgreSQL answers a commit that it has written locally while the wait for
// synchronous standbys was cut off. It has no SQLSTATE of its own, but names the function that raised it.
func onNotice(conn *pgconn.PgConn, notice *pgconn.Notice) {
	if notice.Routine == "SyncRepWaitForLSN" {
		conn.CustomData()[syncWaitKey] = true
	}
}
