package machine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// ID is the 16 bytes of a ulid. The zero ID stands for "none".
type ID [16]byte

// IsZero reports whether the id is "none".
func (id ID) IsZero() bool { return id == ID{} }

// Payload is one value of the user's. A Payload without Data is absent.
type Payload struct {
	// ContentType is the media type; empty means application/json.
	ContentType string
	// Data is the value. It is never changed in place.
	Data []byte
}

// Absent reports whether there is no value.
func (p Payload) Absent() bool { return p.Data == nil }

// IsJSON reports whether the value is JSON by its content type.
func (p Payload) IsJSON() bool { return p.ContentType == "" || p.ContentType == "application/json" }

// InstanceState is the state of an instance. The numbers are stored.
type InstanceState int16

// The states of an instance (ENG-3).
const (
	Running   = InstanceState(wigglev1.InstanceState_INSTANCE_STATE_RUNNING)
	Completed = InstanceState(wigglev1.InstanceState_INSTANCE_STATE_COMPLETED)
	Failed    = InstanceState(wigglev1.InstanceState_INSTANCE_STATE_FAILED)
	Cancelled = InstanceState(wigglev1.InstanceState_INSTANCE_STATE_CANCELLED)
)

// Terminal reports whether an instance in this state has ended.
func (s InstanceState) Terminal() bool { return s != Running }

// String is the state's name in the protocol, without its prefix.
func (s InstanceState) String() string {
	const prefix = len("INSTANCE_STATE_")
	return wigglev1.InstanceState(s).String()[prefix:]
}

// TokenState is the state of a token. The numbers are stored.
type TokenState int16

// The states of a token (ENG-4).
const (
	Ready          = TokenState(wigglev1.TokenState_TOKEN_STATE_READY)
	Leased         = TokenState(wigglev1.TokenState_TOKEN_STATE_LEASED)
	Sleeping       = TokenState(wigglev1.TokenState_TOKEN_STATE_SLEEPING)
	Joined         = TokenState(wigglev1.TokenState_TOKEN_STATE_JOINED)
	Done           = TokenState(wigglev1.TokenState_TOKEN_STATE_DONE)
	TokenFailed    = TokenState(wigglev1.TokenState_TOKEN_STATE_FAILED)
	TokenCancelled = TokenState(wigglev1.TokenState_TOKEN_STATE_CANCELLED)
)

// String is the state's name in the protocol, without its prefix.
func (s TokenState) String() string {
	const prefix = len("TOKEN_STATE_")
	return wigglev1.TokenState(s).String()[prefix:]
}

// transitions lists every change of a token's state that the engine makes. A
// token in flight passes through the states it does not rest in.
var transitions = map[TokenState][]TokenState{
	0:        {Ready, Sleeping, Joined, Done, TokenFailed},
	Ready:    {Leased, Ready, TokenCancelled},
	Leased:   {Ready, Sleeping, Joined, Done, TokenFailed, TokenCancelled},
	Sleeping: {Ready, Sleeping, Joined, Done, TokenFailed, TokenCancelled},
	Joined:   {Ready, TokenCancelled},
}

// ErrTransition tells of a change of state that the engine does not know. It is a
// defect of the engine or of what is stored, never a caller's.
var ErrTransition = errors.New("token transition not allowed")

// move changes a token's state.
func (t *Token) move(to TokenState) error {
	if slices.Contains(transitions[t.State], to) {
		t.State = to
		return nil
	}
	return fmt.Errorf("%w: %d to %s at node %q", ErrTransition, t.State, to, t.Node)
}

// Instance is what is stored of an instance.
type Instance struct {
	ID        ID
	Namespace string
	Workflow  string
	Version   int32
	State     InstanceState
	Priority  int16
	CreatedAt time.Time
	EndedAt   time.Time
	// Context is the result of an instance that has ended. While it runs its
	// context is the View of its first token.
	Context Payload
	// Failure is why it failed or was cancelled.
	Failure *wigglev1.Failure
	// Trace is the trace context of whoever started it, if that was sampled.
	Trace map[string]string
	// Position numbers its own history entries.
	Position int32
}

// Token is what is stored of one point of execution.
type Token struct {
	ID       ID
	Instance ID
	// Parent is the token whose branch this is; zero for the first.
	Parent ID
	// Index is the branch's or element's position among its siblings.
	Index int32
	// Key is the branch's name or the element's key in a map.
	Key string

	// Node is where the token stands. A JOINED token stands at its join.
	Node  string
	State TokenState
	// Held says that the token has not entered its node: a delayed start, or an
	// element that max_in_flight has not let in.
	Held bool
	// DueAt is when a SLEEPING token wakes, or a READY one may be claimed. Zero
	// means: never by time (SLEEPING), at once (READY).
	DueAt time.Time

	// Attempt is the attempt that is under way or waits for a worker, from 1.
	Attempt int32
	// Fence counts the claims of this token.
	Fence int64
	// Queue, Priority and Timeout are those of the step where it stands.
	Queue    string
	Priority int16
	Timeout  time.Duration
	QueuedAt time.Time
	// What follows is set by a claim.
	Worker     string
	LeasedAt   time.Time
	LeaseUntil time.Time
	Deadline   time.Time

	// View is the token's context.
	View Payload
	// HasResult says of a DONE child that its View is its branch's result.
	HasResult bool
	// Progress is what the last attempt sent with a heartbeat.
	Progress Payload
	// Failure is the last failed attempt of the step where it stands.
	Failure *wigglev1.Failure

	// Width, Pending and Next are the fan-out of a JOINED token: its branches in
	// all, those not arrived, the next one to let in.
	Width, Pending, Next int32
	// Loops counts how often each gate sent this token back.
	Loops map[string]int32
	// Trace is the span that brought it where it is, as a W3C traceparent; empty if
	// its instance is not sampled.
	Trace string
	// Position numbers the token's history entries.
	Position int32
	// Settled is how the last lease ended, so that a repeated call is known.
	Settled Settled
}

// Clone copies a token. Payloads are shared: nobody changes them in place.
func (t *Token) Clone() *Token {
	c := *t
	c.Loops = maps.Clone(t.Loops)
	return &c
}

// Clone copies an instance. Payloads are shared: nobody changes them in place.
func (in *Instance) Clone() *Instance {
	c := *in
	return &c
}

// SettledBy is what ended a lease. The numbers are stored.
type SettledBy int16

// What may end a lease.
const (
	NotSettled SettledBy = iota
	ByReport
	ByFailure
	ByExpiry
	ByRelease
)

// Settled tells how a lease ended.
type Settled struct {
	Fence int64
	By    SettledBy
	// RetryAt is what a reported failure was answered with; zero if the instance
	// failed.
	RetryAt time.Time
}
