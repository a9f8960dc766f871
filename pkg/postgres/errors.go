package postgres

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrOutcomeUnknown matches every error of class [Unknown].
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrUnavailable matches every error of class [Unavailable].
	ErrUnavailable = errors.New("database unavailable")
	// ErrReadOnly matches every error of class [ReadOnly].
	ErrReadOnly = errors.New("database is read only")

	errNotWritable = errors.New("server does not accept writes")
	errSyncWait    = errors.New("commit was not confirmed by enough standbys in time")
	errNoFreeConn  = errors.New("no connection of the pool came free in time")
)

// Error is a failed storage call. Its text is safe to show: it names the pool by its configured name, and holds
// neither host, user, SQL, object names nor passwords. What was really said is in [Error.Detail] and by Unwrap; Ref
// ties the two together.
type Error struct {
	// Class says what is known about the outcome.
	Class Class
	// Pool is MemberConfig.Name.
	Pool string
	// Op is what was being done, such as "commit".
	Op string
	// Reason says why in safe words.
	Reason string
	// Ref identifies this failure in logs and towards clients: eight hex digits.
	Ref string
	// RetryAfter is when to try again for Unavailable and ReadOnly; 0 otherwise.
	RetryAfter time.Duration

	cause error
}

// Error returns the sanitised text.
func (e *Error) Error() string {
	return fmt.Sprintf("postgres %s: %s: %s: %s (ref %s)", e.Pool, e.Op, e.Class, e.Reason, e.Ref)
}

// Unwrap returns the driver's error, which may name hosts and objects.
func (e *Error) Unwrap() error { return e.cause }

// Is matches the sentinel of the class: [ErrOutcomeUnknown], [ErrUnavailable], [ErrReadOnly].
func (e *Error) Is(target error) bool {
	switch target {
	case ErrOutcomeUnknown:
		return e.Class == Unknown
	case ErrUnavailable:
		return e.Class == Unavailable
	case ErrReadOnly:
		return e.Class == ReadOnly
	}
	return false
}

// Detail returns everything known for the log of an operator: hosts and object names, never a password.
func (e *Error) Detail() string { return e.Error() + ": " + causeText(e.cause) }

// LogValue logs the error with its detail.
func (e *Error) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("class", e.Class.String()), slog.String("pool", e.Pool), slog.String("op", e.Op),
		slog.String("reason", e.Reason), slog.String("ref", e.Ref), slog.String("cause", causeText(e.cause)))
}

// Detail returns the text of err for a log, with the driver's words if a storage failure is in its chain.
func Detail(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return err.Error() + ": " + causeText(e.cause)
	}
	return err.Error()
}

// causeText renders a driver error for logs. A failed parse of a connection string is left out, because pgx can only
// mask passwords in it by guessing.
func causeText(err error) string {
	if err == nil {
		return ""
	}
	if _, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return "connection string cannot be parsed"
	}
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		for _, field := range []struct{ name, value string }{
			{"constraint", pgErr.ConstraintName}, {"table", pgErr.TableName}, {"where", pgErr.Where}, {"hint", pgErr.Hint},
		} {
			if field.value != "" {
				text += " " + field.name + "=" + strings.ReplaceAll(field.value, "\n", " ")
			}
		}
	}
	return text
}

// wrap turns a driver error into an *Error; answers such as pgx.ErrNoRows and errors already classified pass.
func (p *Pool) wrap(op string, err error, at phase) error {
	if err == nil || isAnswer(err) {
		return err
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return p.newError(op, classify(err, at), err)
}

func (p *Pool) newError(op string, class Class, cause error) *Error {
	e := &Error{Class: class, Pool: p.cfg.Name, Op: op, Reason: reason(cause), Ref: newRef(), cause: cause}
	switch {
	case errors.Is(cause, errSyncWait), errors.Is(cause, errNoFreeConn):
		e.Reason = cause.Error()
	}
	if class == Unavailable || class == ReadOnly {
		e.RetryAfter = retryAfter
	}
	return e
}

// isStorage reports whether err comes from the driver, so that InTx leaves a caller's own errors alone.
func isStorage(err error) bool {
	if isAnswer(err) {
		return false
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return true
	}
	return isConnectError(err) || isBroken(err)
}

func isRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

func newRef() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}
