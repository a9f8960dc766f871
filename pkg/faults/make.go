package faults

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const (
	// retryUnknownShard is how long a process may need to learn a new topology (SHD-22).
	retryUnknownShard = time.Second
	// retryMissing is the pause before a call over all shards is tried again.
	retryMissing = time.Second
	// retryUnknownOutcome is short: the database most likely answers the repeated call at once.
	retryUnknownOutcome = 200 * time.Millisecond
	// quoteMax bounds what a message repeats of a caller's own words.
	quoteMax = 128
	// wordsMax bounds a caller's own words in the fields of a fault.
	wordsMax = 1024
	// messageMax bounds a message as a whole: it travels in an HTTP header.
	messageMax = 2048
	// problemsInMessage is how many problems the message of Invalid spells out; the fault has all.
	problemsInMessage = 3
)

// ShardUnknown tells that no process here serves the shard. It is UNAVAILABLE, because the topology of the called
// process may only be older than the id (SHD-22).
func ShardUnknown(shard int) *Error {
	e := newError(CodeUnavailable, "shard %d is not known here; it may have been added a moment ago: try again, and"+
		" check the id if that goes on", shard).retryable(retryUnknownShard)
	e.fault.Kind = &wigglev1.Fault_ShardUnknown{ShardUnknown: &wigglev1.ShardUnknown{Shard: wireShard(shard)}}
	return e
}

// ShardUnavailable tells that the shard's database, or every process that serves it, is out of reach. Instances on
// other shards go on.
func ShardUnavailable(shard int, retryAfter time.Duration) *Error {
	e := newError(CodeUnavailable, "shard %d does not answer; try again after %s", shard, retryAfter).
		retryable(retryAfter)
	e.fault.Kind = &wigglev1.Fault_ShardUnavailable{ShardUnavailable: &wigglev1.ShardUnavailable{Shard: wireShard(shard)}}
	return e
}

// NoReplica tells that the shard has no replica that will do, and that its primary is not to be read in their place (REP-3).
// It is of the same kind as [ShardUnavailable].
func NoReplica(shard int, retryAfter time.Duration) *Error {
	e := newError(CodeUnavailable, "shard %d has no replica that is healthy and within its lag, and by its setting"+
		" replicaFallback the primary is not read instead; try again after %s", shard, retryAfter).retryable(retryAfter)
	e.fault.Kind = &wigglev1.Fault_ShardUnavailable{ShardUnavailable: &wigglev1.ShardUnavailable{Shard: wireShard(shard)}}
	return e
}

// LeaseLost tells that the worker does not hold the task any more, and that nothing was changed.
func LeaseLost(taskID string) *Error {
	e := newError(CodeAborted, "the lease on task %s is lost: it ran out, or the instance moved on; stop working on it",
		quote(taskID))
	e.fault.Kind = &wigglev1.Fault_LeaseLost{LeaseLost: &wigglev1.LeaseLost{TaskId: cut(taskID, wordsMax)}}
	return e
}

// OutcomeUnknown tells that the answer to a commit was lost (ENG-23). It is UNAVAILABLE, so that clients repeat the
// call, which is safe.
func OutcomeUnknown(shard int) *Error {
	e := newError(CodeUnavailable, "shard %d did not confirm the call, which may or may not have been applied; repeat"+
		" it, that is safe", shard).retryable(retryUnknownOutcome)
	e.fault.Kind = &wigglev1.Fault_OutcomeUnknown{OutcomeUnknown: &wigglev1.OutcomeUnknown{Shard: wireShard(shard)}}
	return e
}

// ShardsMissing tells which shards did not answer a call over all of them.
func ShardsMissing(shards ...int) *Error {
	missing := make([]int32, len(shards))
	words := make([]string, len(shards))
	for i, shard := range shards {
		missing[i], words[i] = wireShard(shard), fmt.Sprint(shard)
	}
	e := newError(CodeUnavailable, "no answer from shards %s; try again, or ask for a partial result",
		strings.Join(words, ", ")).retryable(retryMissing)
	e.fault.Kind = &wigglev1.Fault_ShardsMissing{ShardsMissing: &wigglev1.ShardsMissing{Shards: missing}}
	return e
}

// LimitExceeded names a limit, such as "payload", the setting that holds it, the most it allows and what was asked for.
func LimitExceeded(limit, setting string, maximum, actual int64) *Error {
	e := newError(CodeResourceExhausted, "%s is %d, more than the limit of %d; make it smaller or raise %s", limit, actual,
		maximum, setting)
	e.fault.Kind = &wigglev1.Fault_LimitExceeded{LimitExceeded: &wigglev1.LimitExceeded{
		Limit: limit, Setting: setting, Maximum: maximum, Actual: actual,
	}}
	return e
}

// Problem is one thing that is wrong with a document or request, with its place: a node's id, a field's path, a shard.
func Problem(where, format string, args ...any) *wigglev1.Problem {
	text, _ := safely(format, args)
	return &wigglev1.Problem{Where: cut(where, wordsMax), Message: cut(text, messageMax)}
}

// Invalid tells every problem of a document or request.
func Invalid(problems ...*wigglev1.Problem) *Error {
	var text strings.Builder
	for i, p := range problems {
		if i == problemsInMessage {
			fmt.Fprintf(&text, "; and %d more", len(problems)-i)
			break
		}
		if i > 0 {
			text.WriteString("; ")
		}
		if p.GetWhere() != "" {
			text.WriteString(p.GetWhere() + ": ")
		}
		text.WriteString(p.GetMessage())
	}
	if len(problems) == 0 {
		text.WriteString("not valid")
	}
	e := newError(CodeInvalidArgument, "%s", text.String())
	e.fault.Kind = &wigglev1.Fault_Invalid{Invalid: &wigglev1.Invalid{Problems: problems}}
	return e
}

// DefinitionConflict tells that another graph is registered under the version, and how the two differ (WF-11).
func DefinitionConflict(workflow string, version int, differences ...string) *Error {
	e := newError(CodeFailedPrecondition, "workflow %s has another graph under version %d; leave the version out, or"+
		" declare a new one", quote(workflow), version)
	e.fault.Kind = &wigglev1.Fault_DefinitionConflict{DefinitionConflict: &wigglev1.DefinitionConflict{
		Workflow: cut(workflow, wordsMax), Differences: differences,
		Version: int32(version), //nolint:gosec // it came as an int32
	}}
	return e
}

// NotFound tells that a thing ("instance", "workflow", "version", "task") does not exist under the name.
func NotFound(thing, name string) *Error {
	e := newError(CodeNotFound, "%s %s does not exist", thing, quote(name))
	e.fault.Kind = &wigglev1.Fault_NotFound{NotFound: &wigglev1.NotFound{Thing: thing, Name: cut(name, wordsMax)}}
	return e
}

// WrongState tells that the instance is in a state, such as "COMPLETED", that does not allow the call.
func WrongState(instanceID, state string) *Error {
	e := newError(CodeFailedPrecondition, "instance %s is %s, which does not allow this", quote(instanceID), state)
	e.fault.Kind = &wigglev1.Fault_WrongState{WrongState: &wigglev1.WrongState{
		InstanceId: cut(instanceID, wordsMax), State: state,
	}}
	return e
}

// InvalidArgument tells what is wrong with a call and what would be right. An argument that is an error of the database,
// the network or the file system is kept for the log and left out of the message.
func InvalidArgument(format string, args ...any) *Error {
	return newError(CodeInvalidArgument, format, args...)
}

// AlreadyExists tells that a thing exists already under the name.
func AlreadyExists(thing, name string) *Error {
	return newError(CodeAlreadyExists, "%s %s exists already", thing, quote(name))
}

// FailedPrecondition tells what must be changed before the call can succeed. Arguments are treated as those of
// [InvalidArgument] are.
func FailedPrecondition(format string, args ...any) *Error {
	return newError(CodeFailedPrecondition, format, args...)
}

// Unavailable tells that something that the call needs is out of reach and when to try again. Arguments are treated as
// those of [InvalidArgument] are.
func Unavailable(retryAfter time.Duration, format string, args ...any) *Error {
	return newError(CodeUnavailable, format, args...).retryable(retryAfter)
}

// Overloaded tells that more waits already than is taken, and when to come back. It is RESOURCE_EXHAUSTED, as a limit that was
// passed is, but with a time after which trying again helps. Arguments are treated as those of [InvalidArgument] are.
func Overloaded(retryAfter time.Duration, format string, args ...any) *Error {
	return newError(CodeResourceExhausted, format, args...).retryable(retryAfter)
}

// Unimplemented tells that the process does not offer what was asked for.
func Unimplemented(format string, args ...any) *Error {
	return newError(CodeUnimplemented, format, args...)
}

// PermissionDenied tells which permission, such as "instance.start:orders/refund", the principal, such as "key/ci", does not
// have, and which of that action it has.
func PermissionDenied(permission, principal string, has ...string) *Error {
	only := ""
	if len(has) > 0 {
		only = ", only " + cut(strings.Join(has, ", "), wordsMax)
	}
	e := newError(CodePermissionDenied, "%s has no permission %s%s; an administrator can give it by a role or with the key",
		cut(principal, quoteMax), cut(permission, quoteMax), only)
	e.fault.Kind = permissionMissing(permission, principal)
	return e
}

// PermissionDeniedOn tells that the principal has no permission for the action on the thing under that id, if there is such a
// thing at all: that is for those to know who may see everything.
func PermissionDeniedOn(action, principal, thing, id string) *Error {
	e := newError(CodePermissionDenied, "%s has no permission %s for %s %s, or there is none", cut(principal, quoteMax),
		cut(action, quoteMax), thing, quote(id))
	e.fault.Kind = permissionMissing(action, principal)
	return e
}

func permissionMissing(permission, principal string) *wigglev1.Fault_PermissionMissing {
	return &wigglev1.Fault_PermissionMissing{PermissionMissing: &wigglev1.PermissionMissing{
		Permission: cut(permission, wordsMax), Principal: cut(principal, wordsMax),
	}}
}

// Denied tells why the caller may not do this where no permission would help. Arguments are treated as those of
// [InvalidArgument] are.
func Denied(format string, args ...any) *Error {
	return newError(CodePermissionDenied, format, args...)
}

// Unauthenticated tells why it is not known who calls, and what the caller has to show. Arguments are treated as those of
// [InvalidArgument] are.
func Unauthenticated(format string, args ...any) *Error {
	return newError(CodeUnauthenticated, format, args...)
}

// Internal hides cause behind a reference id under which the log has it.
func Internal(cause error) *Error {
	id := newReference()
	e := newError(CodeInternal, "internal error; the server's log has it under reference %s", id)
	e.fault.ReferenceId, e.cause = id, cause
	return e
}

func newError(code Code, format string, args ...any) *Error {
	text, cause := safely(format, args)
	return &Error{fault: &wigglev1.Fault{Code: int32(code), Message: cut(text, messageMax)}, cause: cause}
}

// retryable sets the pause on an error that nobody else has seen yet.
func (e *Error) retryable(after time.Duration) *Error {
	e.fault.RetryAfter = durationpb.New(max(after, 0))
	return e
}

// safely formats a message for clients and returns the first error among the arguments as the cause. Errors that are
// known to name hosts, tables or files do not get into the text.
func safely(format string, args []any) (text string, cause error) {
	copied := false
	for i, arg := range args {
		err, ok := arg.(error)
		if !ok || err == nil {
			continue
		}
		if cause == nil {
			cause = err
		}
		if _, safe := err.(*Error); !safe && leaks(err) { //nolint:errorlint // asks for the error, not its causes
			if !copied {
				args, copied = append([]any(nil), args...), true
			}
			args[i] = errors.New("the log has the reason")
		}
	}
	return fmt.Sprintf(format, args...), cause
}

// leaks reports whether the text of err comes from the database, the network or the file system.
func leaks(err error) bool {
	if _, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[*os.PathError](err)
	return ok
}

// quote repeats a caller's own words, bounded.
func quote(s string) string { return fmt.Sprintf("%q", cut(s, quoteMax)) }

// cut shortens s to at most limit bytes, hides what is secret in it, and replaces what is not UTF-8, which protobuf strings must
// be.
func cut(s string, limit int) string {
	s = Hide(s)
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func newReference() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}

// wireShard is a shard's number as messages have it: ids hold no larger one.
func wireShard(shard int) int32 { return int32(shard) } //nolint:gosec // as said
