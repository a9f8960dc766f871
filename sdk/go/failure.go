package wiggle

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// NonRetryable marks a handler's error as one that trying again can not help: the
// instance fails at once, whatever the step's retry policy says. nil stays nil.
func NonRetryable(err error) error {
	if err == nil {
		return nil
	}
	return &nonRetryable{err}
}

// RetryAfter gives a handler's error the pause until the next attempt, in place of
// the policy's. nil stays nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfter{err, d}
}

// ErrorType gives a handler's error the type by which retry policies
// ([RetryPolicy.NonRetryable]) and people know it. Without it the type is the name
// of the error's Go type. nil stays nil.
func ErrorType(name string, err error) error {
	if err == nil {
		return nil
	}
	return &typedError{err, name}
}

type nonRetryable struct{ error }

func (e *nonRetryable) Unwrap() error { return e.error }

type retryAfter struct {
	error
	after time.Duration
}

func (e *retryAfter) Unwrap() error { return e.error }

type typedError struct {
	error
	name string
}

func (e *typedError) Unwrap() error { return e.error }

// panicError is a handler's panic.
type panicError struct {
	value any
	stack string
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// Unwrap is the value of a panic(err), so that what the error says of itself (that
// it is not retryable, its type) holds.
func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

// Types of the failures that the worker makes itself.
const (
	typePanic     = "wiggle.Panic"
	typeNoHandler = "wiggle.NoHandler"
	typeWrongKind = "wiggle.WrongKind"
	typePayload   = "wiggle.Payload"
	typeRefused   = "wiggle.ReportRefused"
)

// maxFailureText bounds message and stack, as the protocol does.
const maxFailureText = 60 << 10

// failRequest is the report of a handler's error, without the task's names.
func failRequest(err error) *wigglev1.FailTaskRequest {
	req := &wigglev1.FailTaskRequest{
		Failure: &wigglev1.Failure{Type: typeOf(err), Message: cut(err.Error(), maxFailureText)},
	}
	if p, ok := errors.AsType[*panicError](err); ok {
		req.Failure.Stack = cut(p.stack, maxFailureText)
	}
	_, req.NonRetryable = errors.AsType[*nonRetryable](err)
	if r, ok := errors.AsType[*retryAfter](err); ok {
		req.RetryDelay = durationpb.New(max(r.after, 0))
	}
	return req
}

// typeOf is the name that ErrorType gave, or that of the first Go type in the chain
// that says more than that errors or fmt made it.
func typeOf(err error) string {
	if t, ok := errors.AsType[*typedError](err); ok {
		return cut(t.name, 256)
	}
	if _, ok := errors.AsType[*panicError](err); ok {
		return typePanic
	}
	for e := err; e != nil; e = unwrap(e) {
		name := strings.TrimLeft(reflect.TypeOf(e).String(), "*")
		if !slices.ContainsFunc(wrappers, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			return cut(name, 256)
		}
	}
	return "error"
}

// wrappers begin the names of types that say nothing about what went wrong.
var wrappers = []string{"errors.", "fmt.", "wiggle.nonRetryable", "wiggle.retryAfter"}

// unwrap goes down an error's chain, of several errors to the first.
func unwrap(err error) error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		if errs := many.Unwrap(); len(errs) > 0 {
			return errs[0]
		}
		return nil
	}
	return errors.Unwrap(err)
}

// cut shortens text to so many bytes and makes it valid UTF-8, which protobuf
// insists on.
func cut(s string, limit int) string {
	const mark = "... (cut)"
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-len(mark)], "") + mark
}
