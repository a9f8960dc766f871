package machine

import (
	"errors"
	"fmt"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Env is what the outside gives to an event: the time, ids and chance. With the
// same Env the same event on the same state gives the same changes.
type Env struct {
	// Now is the time, by the clock of the store.
	Now time.Time
	// NewID mints the id of a new token.
	NewID func() ID
	// Random is a number in [0, 1), for jitter.
	Random func() float64
	// Limits bound what users send.
	Limits Limits
}

// Limits bound payloads and fan-outs (WF-8). Each has a setting.
type Limits struct {
	// PayloadBytes bounds a context, an input and a result.
	PayloadBytes int
	// Branches bounds one fan-out.
	Branches int
	// HistoryBytes bounds what history keeps of an output.
	HistoryBytes int
	// CombineBytes bounds what a combine is handed: its view and every branch's
	// result.
	CombineBytes int
	// EventBytes bounds the payload of an event that a handler emits.
	EventBytes int
}

// DefaultLimits are the limits where nothing else is set: 2 MiB, 10 000, 4 KiB,
// 32 MiB, 64 KiB.
func DefaultLimits() Limits {
	return Limits{PayloadBytes: 2 << 20, Branches: 10_000, HistoryBytes: 4 << 10, CombineBytes: 32 << 20, EventBytes: 64 << 10}
}

// The settings that hold the limits.
const (
	SettingPayloadBytes = "WIGGLE_LIMIT_PAYLOAD_BYTES"
	SettingBranches     = "WIGGLE_LIMIT_BRANCHES"
	SettingHistoryBytes = "WIGGLE_LIMIT_HISTORY_BYTES"
	SettingCombineBytes = "WIGGLE_LIMIT_COMBINE_BYTES"
	SettingEventBytes   = "WIGGLE_LIMIT_EVENT_BYTES"
)

// Errors of events. None comes with a change.
var (
	// ErrLeaseLost: the token is not leased under the event's fence.
	ErrLeaseLost = errors.New("lease is no longer held")
	// ErrNotDue: the timer's token does not wait for a time, or not for this one.
	ErrNotDue = errors.New("token is not due")
	// ErrEnded: the instance has ended.
	ErrEnded = errors.New("instance has ended")
)

// OutcomeError tells that a report does not fit the step's kind.
type OutcomeError struct {
	// Node is the step's node, Kind what it is, Got what the report carried.
	Node, Kind, Got string
}

// Error says what was reported and what would fit.
func (e *OutcomeError) Error() string {
	return fmt.Sprintf("step at node %q is a %s and was reported with %s", e.Node, e.Kind, e.Got)
}

// LimitError tells which limit was passed and which setting holds it.
type LimitError struct {
	Limit, Setting  string
	Maximum, Actual int
}

// Error names the limit, both sizes and the setting.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%s of %d is over the limit of %d (%s)", e.Limit, e.Actual, e.Maximum, e.Setting)
}

// Start is the event that makes an instance.
type Start struct {
	ID        ID
	Namespace string
	Input     Payload
	Priority  int16
	Delay     time.Duration
	Trace     map[string]string
}

// OutcomeKind is what a report carries.
type OutcomeKind int

// What a report may carry.
const (
	OutcomeNone OutcomeKind = iota
	OutcomeResult
	OutcomeUnchanged
	OutcomeGate
	OutcomeChoice
)

// String names the outcome as the protocol does.
func (k OutcomeKind) String() string {
	return [...]string{"no outcome", "result", "unchanged", "gate", "choice"}[k]
}

// Report is a step that is done.
type Report struct {
	Fence  int64
	Worker string
	// Kind says which of the following counts.
	Kind   OutcomeKind
	Result Payload
	Gate   bool
	Choice string
	// StartedAt and FinishedAt are as the worker says.
	StartedAt, FinishedAt time.Time
	// Events are what the handler emitted, in order.
	Events []Emitted
}

// Fail is an attempt that failed, as the worker says.
type Fail struct {
	Fence                 int64
	Worker                string
	Type, Message, Stack  string
	NonRetryable          bool
	RetryDelay            time.Duration // 0 means the policy's
	HasRetryDelay         bool
	StartedAt, FinishedAt time.Time
}

// Types of failures that the engine makes itself. Retry policies may name them.
const (
	// FailureLeaseExpired is an attempt whose worker let its lease run out.
	FailureLeaseExpired = "wiggle.LeaseExpired"
	// FailureTimeout is an attempt that passed its start-to-finish timeout.
	FailureTimeout = "wiggle.Timeout"
	// FailureEnd is an end node that fails.
	FailureEnd = "wiggle.End"
	// FailureChoice is an answer that is no case where there is no default.
	FailureChoice = "wiggle.UnknownChoice"
	// FailureItems is a for_each over what is no collection.
	FailureItems = "wiggle.NotACollection"
	// FailureInstant is a sleep until what is no instant.
	FailureInstant = "wiggle.NotAnInstant"
	// FailureLimit is a limit passed by what the graph made of the context.
	FailureLimit = "wiggle.LimitExceeded"
	// FailureLoop is a loop over its budget.
	FailureLoop = "wiggle.LoopBudget"
	// FailureDepth is a drive over too many server-run nodes.
	FailureDepth = "wiggle.DriveBudget"
	// FailureCancelled marks a cancelled instance's reason.
	FailureCancelled = "wiggle.Cancelled"
)

// failure builds a failure of the engine's own.
func failure(kind, node, format string, args ...any) *wigglev1.Failure {
	return &wigglev1.Failure{Type: kind, Message: fmt.Sprintf(format, args...), Node: node}
}
