package faults

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Error is an error that may go to a client, with what must not: its cause. It does not change once made.
type Error struct {
	fault *wigglev1.Fault
	cause error
}

// Error returns the fault's message, which is what the client gets.
func (e *Error) Error() string {
	if e == nil {
		return "<nil>"
	}
	return e.fault.GetMessage()
}

// Unwrap returns the cause, which may name hosts and tables. It is nil where there is none, and always nil for a fault
// that came from another process.
func (e *Error) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.cause
}

// Code returns the fault's code; CodeOK for a nil error.
func (e *Error) Code() Code { return Code(e.proto().GetCode()) }

// Kind returns the name of the fault's kind as fault.proto has it, such as "lease_lost"; empty for a fault that is no
// more than its code.
func (e *Error) Kind() string { return kindName(e.proto()) }

// RetryAfter returns how long to wait before trying again. It is false where trying again is no use.
func (e *Error) RetryAfter() (time.Duration, bool) {
	after := e.proto().GetRetryAfter()
	return after.AsDuration(), after != nil
}

// ReferenceID returns the id under which the log has the cause; empty unless the fault is internal.
func (e *Error) ReferenceID() string { return e.proto().GetReferenceId() }

// ToProto returns a copy of the fault for an answer. It leaves the cause behind: whoever puts an internal fault into
// the outcome of a batch logs it first. A nil error has no fault.
func (e *Error) ToProto() *wigglev1.Fault {
	if e == nil {
		return nil
	}
	return proto.CloneOf(e.fault)
}

// WithCause returns the error with a cause for the log.
func (e *Error) WithCause(cause error) *Error { return &Error{fault: e.fault, cause: cause} }

// Is matches the sentinels of this package, by kind or by code as each of them says.
func (e *Error) Is(target error) bool {
	s, ok := target.(*sentinel)
	return ok && e != nil && s.matches(e.fault)
}

// Detail returns everything known, for the log: the message, the reference and the cause, with the words of the
// database or the network where the cause keeps those apart.
func (e *Error) Detail() string {
	text := e.Error()
	if e == nil || e.cause == nil {
		return text
	}
	return text + ": " + causeText(e.cause)
}

// LogValue logs the error with its detail.
func (e *Error) LogValue() slog.Value {
	if e == nil {
		return slog.Value{}
	}
	attrs := []slog.Attr{slog.String("code", e.Code().String()), slog.String("message", e.Error())}
	if kind := e.Kind(); kind != "" {
		attrs = append(attrs, slog.String("kind", kind))
	}
	if id := e.ReferenceID(); id != "" {
		attrs = append(attrs, slog.String("reference", id))
	}
	if e.cause != nil {
		attrs = append(attrs, slog.String("cause", causeText(e.cause)))
	}
	return slog.GroupValue(attrs...)
}

// proto returns the fault without copying it; nil for a nil error.
func (e *Error) proto() *wigglev1.Fault {
	if e == nil {
		return nil
	}
	return e.fault
}

// FromError returns the fault in err's chain. A cancelled or timed-out context becomes CANCELED or DEADLINE_EXCEEDED;
// everything else is INTERNAL, tells the client a reference id and keeps err as the cause. It returns nil for nil, which is
// not a nil error once it is in a variable of type error.
func FromError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e != nil {
		return withContext(e, err)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return newError(CodeCanceled, "the call was cancelled").WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		return newError(CodeDeadlineExceeded,
			"the call's time ran out; it may or may not have been applied, and repeating it is safe").WithCause(err)
	}
	return Internal(err)
}

// withContext keeps what was wrapped around a fault on its way up as part of the cause, for the log.
func withContext(e *Error, err error) *Error {
	if err == error(e) { //nolint:errorlint // asks for this very value, not for one in a chain
		return e
	}
	return e.WithCause(&wrapped{text: err.Error(), cause: e.cause})
}

// wrapped is the text of an error around a fault, with the cause of the fault.
type wrapped struct {
	text  string
	cause error
}

func (w *wrapped) Error() string { return w.text }
func (w *wrapped) Unwrap() error { return w.cause }

// FromProto returns the error for a fault that came in an answer; nil for nil. A code that is none of gRPC's becomes
// UNKNOWN.
func FromProto(fault *wigglev1.Fault) *Error {
	if fault == nil {
		return nil
	}
	fault = proto.CloneOf(fault)
	if !Code(fault.GetCode()).Valid() {
		fault.Code = int32(CodeUnknown)
	}
	if fault.GetMessage() == "" {
		fault.Message = Code(fault.GetCode()).String()
	}
	return &Error{fault: fault}
}

// CodeOf returns the code that err has for a client: CodeOK for nil, CodeInternal for an error that is no fault.
func CodeOf(err error) Code {
	if err == nil {
		return CodeOK
	}
	if e, ok := errors.AsType[*Error](err); ok && e != nil {
		return e.Code()
	}
	switch {
	case errors.Is(err, context.Canceled):
		return CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return CodeDeadlineExceeded
	}
	return CodeInternal
}

// causeText renders a cause for logs. A cause that keeps its detail out of its text, as those of package postgres do,
// is asked for it.
func causeText(cause error) string {
	text := cause.Error()
	if d, ok := errors.AsType[interface {
		error
		Detail() string
	}](cause); ok {
		text += ": " + d.Detail()
	}
	return text
}
