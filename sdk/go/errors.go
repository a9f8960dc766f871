package wiggle

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// What went wrong, for errors.Is. An error of the server is an [*Error], which
// says more.
var (
	// ErrInvalid: the request, or a definition, is not valid. [Error.Problems] says
	// where.
	ErrInvalid = errors.New("wiggle: invalid")
	// ErrNotFound: no such instance, workflow, version or schedule.
	ErrNotFound = errors.New("wiggle: not found")
	// ErrAlreadyExists: something else has that id.
	ErrAlreadyExists = errors.New("wiggle: already exists")
	// ErrFailedPrecondition: the state does not allow the call, for example
	// cancelling an instance that has completed.
	ErrFailedPrecondition = errors.New("wiggle: failed precondition")
	// ErrDefinitionConflict: another graph is registered under the declared version.
	// [Error.Differences] says what differs. It is an ErrFailedPrecondition too.
	ErrDefinitionConflict = errors.New("wiggle: the version is taken by another graph")
	// ErrResourceExhausted: a limit was passed, or the server has too much to do.
	ErrResourceExhausted = errors.New("wiggle: resource exhausted")
	// ErrUnavailable: the server, or the shard in question, is out of reach.
	ErrUnavailable = errors.New("wiggle: unavailable")
	// ErrOutcomeUnknown: the call may or may not have been applied. Repeating it
	// with the same ids is safe.
	ErrOutcomeUnknown = errors.New("wiggle: outcome unknown")
	// ErrShardsMissing: some shards did not answer. [Error.Shards], or
	// [PartialError.Missing], names them.
	ErrShardsMissing = errors.New("wiggle: shards are missing")
	// ErrUnauthenticated: the server does not know the caller: no API key was shown, or
	// it was revoked or has expired. See [WithAPIKey].
	ErrUnauthenticated = errors.New("wiggle: unauthenticated")
	// ErrPermissionDenied: the caller may not do that. [Error.Permission] says what it
	// lacks.
	ErrPermissionDenied = errors.New("wiggle: permission denied")
	// ErrInternal: a fault of the server. [Error.ReferenceID] names it in its log.
	ErrInternal = errors.New("wiggle: internal error")
	// ErrLeaseLost: the task is no longer this worker's: its lease ran out, or its
	// instance has ended. It is the cause (context.Cause) of a handler's context
	// that was cancelled for it.
	ErrLeaseLost = errors.New("wiggle: lease lost")
	// ErrWorkerStopped is the cause (context.Cause) of a handler's context that was
	// cancelled because its worker's grace was over.
	ErrWorkerStopped = errors.New("wiggle: worker stopped")
)

// Error is what the server, or the way to it, answered in place of a result.
type Error struct {
	// Op says what was being done, for people.
	Op string
	// Code is the code of the protocol.
	Code connect.Code
	// Message says what is wrong and what to do about it, for people.
	Message string
	// ReferenceID names what happened in the server's log. Set for internal errors.
	ReferenceID string
	// RetryAfter is how long to wait before trying again. 0 where the server did
	// not say.
	RetryAfter time.Duration
	// Problems of an invalid definition or schedule.
	Problems []Problem
	// Differences between the registered graph and the one sent, a line each.
	Differences []string
	// Shards that did not answer.
	Shards []int
	// Permission that the caller lacks, with its scope, such as
	// instance.start:orders/refund.
	Permission string

	fault *wigglev1.Fault
	err   error
}

// Error is the operation, the code and the message, with the problems or
// differences, a line each.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("wiggle: ")
	if e.Op != "" {
		b.WriteString(e.Op + ": ")
	}
	b.WriteString(e.Code.String())
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	if e.Permission != "" && !strings.Contains(e.Message, e.Permission) {
		b.WriteString(" (" + e.Permission + " is missing)")
	}
	if e.ReferenceID != "" {
		b.WriteString(" (reference " + e.ReferenceID + ")")
	}
	for _, p := range e.Problems {
		b.WriteString("\n\t" + p.String())
	}
	for _, d := range e.Differences {
		b.WriteString("\n\t" + d)
	}
	return b.String()
}

// Unwrap is the error of the transport, if there was one.
func (e *Error) Unwrap() error { return e.err }

// Fault is the typed detail that the server sent, or nil.
func (e *Error) Fault() *wigglev1.Fault { return e.fault }

// Is makes errors.Is work with the sentinels of this package.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrInvalid:
		return e.Code == connect.CodeInvalidArgument
	case ErrNotFound:
		return e.Code == connect.CodeNotFound
	case ErrAlreadyExists:
		return e.Code == connect.CodeAlreadyExists
	case ErrFailedPrecondition:
		return e.Code == connect.CodeFailedPrecondition
	case ErrResourceExhausted:
		return e.Code == connect.CodeResourceExhausted
	case ErrUnavailable:
		return e.Code == connect.CodeUnavailable
	case ErrUnauthenticated:
		return e.Code == connect.CodeUnauthenticated
	case ErrPermissionDenied:
		return e.Code == connect.CodePermissionDenied
	case ErrInternal:
		return e.Code == connect.CodeInternal
	case ErrDefinitionConflict:
		return e.fault.GetDefinitionConflict() != nil
	case ErrLeaseLost:
		return e.fault.GetLeaseLost() != nil
	case ErrOutcomeUnknown:
		return e.fault.GetOutcomeUnknown() != nil
	case ErrShardsMissing:
		return e.fault.GetShardsMissing() != nil
	}
	return false
}

// retryable tells whether trying the same again may help. It says nothing about
// whether that is safe: every call that the client repeats is idempotent. An
// attempt that passed its own timeout, told by either side, is a connection that
// is gone (whether the caller still waits is asked of its context).
func (e *Error) retryable() bool {
	return e.Code == connect.CodeUnavailable || e.Code == connect.CodeDeadlineExceeded || e.RetryAfter > 0 ||
		e.fault.GetOutcomeUnknown() != nil || e.fault.GetShardUnknown() != nil || e.fault.GetShardUnavailable() != nil
}

// AsError makes an [*Error] of what a call of a generated client returned: see
// [Client.Generated]. op says what was being done, for people. nil stays nil.
func AsError(op string, err error) error { return toError(op, err) }

// toError makes an [*Error] of what a call returned. nil stays nil.
func toError(op string, err error) error {
	if err == nil {
		return nil
	}
	out := &Error{Op: op, Code: connect.CodeOf(err), Message: err.Error(), err: err}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return out
	}
	out.Message = ce.Message()
	if connectionLost(ce) {
		out.Code = connect.CodeUnavailable
	}
	for _, d := range ce.Details() {
		v, derr := d.Value()
		if f, ok := v.(*wigglev1.Fault); ok && derr == nil {
			out.fill(f)
			break
		}
	}
	return out
}

// connectionLost tells whether a call failed because the server or the network dropped its connection. The Connect library
// calls that CANCELED, as it is on the side of a server whose client has gone; here nobody has cancelled anything.
func connectionLost(ce *connect.Error) bool {
	return ce.Code() == connect.CodeCanceled && (errors.Is(ce, syscall.EPIPE) || errors.Is(ce, syscall.ECONNRESET))
}

// faultError is the error of one item of a batch. nil stays nil.
func faultError(op string, f *wigglev1.Fault) *Error {
	if f == nil {
		return nil
	}
	out := &Error{Op: op, Code: connect.Code(f.GetCode())} //nolint:gosec // 1 to 16, and any other is no code of ours
	out.fill(f)
	return out
}

func (e *Error) fill(f *wigglev1.Fault) {
	e.fault = f
	if f.GetMessage() != "" {
		e.Message = f.GetMessage()
	}
	e.ReferenceID = f.GetReferenceId()
	e.RetryAfter = f.GetRetryAfter().AsDuration()
	if inv := f.GetInvalid(); inv != nil {
		e.Problems = problemsOf(inv.GetProblems())
	}
	e.Permission = f.GetPermissionMissing().GetPermission()
	e.Differences = slices.Clone(f.GetDefinitionConflict().GetDifferences())
	for _, s := range f.GetShardsMissing().GetShards() {
		e.Shards = append(e.Shards, int(s))
	}
}
