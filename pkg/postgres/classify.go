package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// Class says what is known about a failed storage call: whether anything was written and what may help.
type Class int

const (
	// OK is the class of a nil error.
	OK Class = iota
	// NotApplied means nothing was written and the same call may well succeed now: serialization failure, deadlock,
	// lock timeout, too many connections. [Pool.InTx] has already repeated it in place.
	NotApplied
	// Interrupted means nothing was written because the caller gave up or a time limit cut the statement off.
	// Not repeated in place: it would only take the same time again.
	Interrupted
	// Unknown means the call may or may not have been applied: a commit whose answer was lost, or a connection that
	// broke during a statement outside a transaction. Operations are built so that repeating them is safe.
	Unknown
	// Unavailable means nothing was written because the member cannot be reached or takes no work now.
	Unavailable
	// ReadOnly means nothing was written because the server takes no writes: it was demoted, or is a replica.
	ReadOnly
	// Permanent means nothing was written and the same call fails again: constraint, syntax, permission.
	Permanent
)

// String returns the class in words, as error texts and metrics use it.
func (c Class) String() string {
	names := [...]string{"ok", "not applied", "interrupted", "outcome unknown", "unavailable", "read only", "permanent"}
	if c < 0 || int(c) >= len(names) {
		return "invalid class"
	}
	return names[c]
}

// SQLSTATEs that need naming. https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	stateUniqueViolation    = "23505"
	stateReadOnly           = "25006"
	stateIdleInTransaction  = "25P03"
	stateTransactionTimeout = "25P04"
	stateSerialization      = "40001"
	stateDeadlock           = "40P01"
	stateCompletionUnknown  = "40003"
	stateTooManyConnections = "53300"
	stateLockNotAvailable   = "55P03"
	stateQueryCanceled      = "57014"
	stateAdminShutdown      = "57P01"
	stateCrashShutdown      = "57P02"
	stateCannotConnectNow   = "57P03"
	stateIdleSession        = "57P05"
	stateResolutionUnknown  = "08007"
	stateUnknownStatement   = "26000"
	stateFeature            = "0A000"
	stateUndefinedTable     = "42P01"
)

// phase is where in a call a failure happened; the same broken connection means different things in each.
type phase int

const (
	phaseConnect   phase = iota // no statement was sent
	phaseStatement              // outside a transaction: the statement may have committed by itself
	phaseTx                     // inside a transaction whose COMMIT was not sent: nothing is applied
	phaseCommit                 // COMMIT was sent
)

// Classify returns the class of err, looking through wrapping. An error that did not pass through a [Pool] (from
// [Pool.Raw], say) is taken to come from a statement outside a transaction, so a broken connection is [Unknown].
// Errors that are not about storage, pgx.ErrNoRows among them, are [Permanent].
func Classify(err error) Class {
	if err == nil {
		return OK
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return classify(err, phaseStatement)
}

// IsUniqueViolation reports whether err is a violation of the named unique constraint or index; an empty name
// stands for any.
func IsUniqueViolation(err error, constraint string) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == stateUniqueViolation && (constraint == "" || pgErr.ConstraintName == constraint)
}

// IsUndefinedTable reports whether err says that a table does not exist, which for Wiggle means "not migrated".
func IsUndefinedTable(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == stateUndefinedTable
}

func classify(err error, at phase) Class {
	if err == nil {
		return OK
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return classifyState(pgErr, at, isConnectError(err))
	}
	switch {
	case isConnectError(err), errors.Is(err, puddle.ErrClosedPool):
		return Unavailable
	case isBroken(err) && pgconn.SafeToRetry(err):
		if isContext(err) {
			return Interrupted
		}
		return NotApplied
	case isBroken(err):
		return brokenClass(err, at)
	}
	return Permanent
}

// brokenClass is the class of a connection that ended, by itself or because the caller's context did, after
// something was sent.
func brokenClass(err error, at phase) Class {
	switch {
	case at == phaseStatement || at == phaseCommit:
		return Unknown
	case isContext(err):
		return Interrupted
	case at == phaseConnect:
		return Unavailable
	}
	return NotApplied
}

func classifyState(pgErr *pgconn.PgError, at phase, connecting bool) Class {
	switch pgErr.Code {
	case stateSerialization, stateDeadlock, stateLockNotAvailable, stateTooManyConnections, stateUnknownStatement:
		return NotApplied
	case stateFeature:
		// "cached plan must not change result type": a migration ran under a prepared statement. pgx has dropped the
		// statement on this error, so the next try prepares it anew.
		if pgErr.Routine == "RevalidateCachedQuery" {
			return NotApplied
		}
		return Permanent
	case stateQueryCanceled, stateIdleInTransaction, stateTransactionTimeout:
		return Interrupted
	case stateReadOnly:
		return ReadOnly
	case stateCompletionUnknown, stateResolutionUnknown:
		return Unknown
	case stateAdminShutdown, stateCrashShutdown, stateIdleSession:
		if connecting {
			return Unavailable
		}
		return brokenClass(pgErr, at)
	case stateCannotConnectNow:
		return Unavailable
	}
	// Class 08: connection exceptions, also how poolers refuse. Class 53: out of disk, memory, ...: it writes
	// nothing, and trying at once again helps nobody.
	if connecting || strings.HasPrefix(pgErr.Code, "08") || strings.HasPrefix(pgErr.Code, "53") {
		return Unavailable
	}
	return Permanent
}

func isConnectError(err error) bool {
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// isBroken reports an error of the connection rather than an answer of the server.
func isBroken(err error) bool {
	if pgconn.SafeToRetry(err) || pgconn.Timeout(err) || isContext(err) {
		return true
	}
	if errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	_, ok := errors.AsType[net.Error](err)
	return ok
}

// isAnswer reports errors that are results, not failures, and pass through unchanged.
func isAnswer(err error) bool {
	return errors.Is(err, pgx.ErrNoRows) || errors.Is(err, pgx.ErrTooManyRows) || errors.Is(err, pgx.ErrTxClosed)
}

// reason describes err in words that name no host, user, object or statement.
func reason(err error) string {
	pgErr, isPg := errors.AsType[*pgconn.PgError](err)
	var dns *net.DNSError
	switch {
	case isPg && pgErr.Code == stateReadOnly:
		return "server is read only"
	case isPg && pgErr.Code == stateCannotConnectNow:
		return "server is starting up or shutting down"
	case isPg && pgErr.Code == stateAdminShutdown:
		return "server closed the session"
	case isPg && pgErr.Code == stateTooManyConnections:
		return "too many connections"
	case isPg && strings.HasPrefix(pgErr.Code, "28"):
		return "authentication refused"
	case isPg:
		return "SQLSTATE " + pgErr.Code
	case errors.Is(err, puddle.ErrClosedPool):
		return "pool is closed"
	case errors.As(err, &dns):
		return "host name not found"
	case errors.Is(err, errNotWritable), strings.Contains(err.Error(), "read only connection"):
		return "no server accepts writes"
	case isRefused(err):
		return "connection refused"
	case errors.Is(err, context.Canceled):
		return "cancelled by the caller"
	case isConnectError(err) && (pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded)):
		return "connecting timed out"
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err):
		return "timed out"
	case isConnectError(err):
		return "cannot connect"
	case isBroken(err):
		return "connection lost"
	}
	return "refused by the driver"
}
