package wiggle

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// State is the state of an instance.
type State int32

// The states of an instance.
const (
	// Running: live.
	Running = State(wigglev1.InstanceState_INSTANCE_STATE_RUNNING)
	// Completed: ended well.
	Completed = State(wigglev1.InstanceState_INSTANCE_STATE_COMPLETED)
	// Failed: ended by a failure.
	Failed = State(wigglev1.InstanceState_INSTANCE_STATE_FAILED)
	// Cancelled: ended by a caller.
	Cancelled = State(wigglev1.InstanceState_INSTANCE_STATE_CANCELLED)
)

// String is the state in capitals, as everywhere in Wiggle: COMPLETED.
func (s State) String() string {
	return trimEnum(wigglev1.InstanceState(s).String(), "INSTANCE_STATE_")
}

// Ended tells whether the state is a final one.
func (s State) Ended() bool { return s != Running && s != 0 }

// Instance is one run of a workflow, as it was when it was read.
type Instance struct {
	// ID names it: wfi.s{shard}.{ulid}.
	ID string
	// Namespace.
	Namespace string
	// Workflow and the Version that it runs, from start to end.
	Workflow string
	Version  int
	// State.
	State State
	// CreatedAt and EndedAt are by the clock of its database. EndedAt is zero while
	// it runs.
	CreatedAt, EndedAt time.Time
	// Priority, 0 (lowest) to 9.
	Priority int
	// Failure says why it failed or was cancelled. nil otherwise.
	Failure *Failure
	// Tokens are its points of execution that are not settled, at most 1000, oldest
	// first, of ActiveTokens in all. Only Get fills them.
	Tokens       []Token
	ActiveTokens int

	context *wigglev1.Payload
}

// Decode reads the context, at the end the result, into a pointer. Lists do not
// carry it.
func (i *Instance) Decode(into any) error { return decode(i.context, into) }

// Context is the context as bytes.
func (i *Instance) Context() Payload {
	var p Payload
	if err := decode(i.context, &p); err != nil {
		return Payload{}
	}
	return p
}

// Failure tells why an attempt, or an instance, failed.
type Failure struct {
	// Type of the error, by which retry policies know it. See [ErrorType].
	Type string
	// Message says what happened.
	Message string
	// Stack, where the worker sent one.
	Stack string
	// Node where it happened, at which Attempt, at which Worker.
	Node    string
	Attempt int
	Worker  string
}

// String is "type: message (at node, attempt n)".
func (f *Failure) String() string {
	if f == nil {
		return "no failure"
	}
	s := f.Message
	if f.Type != "" {
		s = f.Type + ": " + s
	}
	if f.Node != "" {
		s += fmt.Sprintf(" (at %s, attempt %d)", f.Node, f.Attempt)
	}
	return s
}

// Token is one point of execution in an instance.
type Token struct {
	// ID, and the ParentID of the token whose branch it is, empty for the first.
	ID, ParentID string
	// Node where it stands.
	Node string
	// State: READY, LEASED, SLEEPING, JOINED, DONE, FAILED or CANCELLED.
	State string
	// Attempt of the step, from 1; 0 where no step is under way.
	Attempt int
	// Branch is the fork's branch, or the element's index or key.
	Branch string
	// DueAt is when it may go on, for a token that waits for a time.
	DueAt time.Time
	// Worker that holds it, until LeaseExpiresAt.
	Worker         string
	LeaseExpiresAt time.Time
	// LastFailure is the last failed attempt of the step.
	LastFailure *Failure
	// PendingBranches have not arrived, for a token that waits at a join.
	PendingBranches int
}

// HistoryEntry is one thing that happened to an instance.
type HistoryEntry struct {
	// Kind: STARTED, STEP_COMPLETED, STEP_FAILED, TIMER_SET, TIMER_FIRED,
	// FANNED_OUT, ARRIVED, JOINED, COMPLETED, FAILED, CANCELLED.
	Kind string
	// RecordedAt is by the clock of the database.
	RecordedAt time.Time
	// TokenID is the token that it happened to. Empty for the instance itself.
	TokenID string
	// ParentTokenID is the token whose branch the token is. Empty for the first.
	ParentTokenID string
	// Node, and for a step its name, Attempt and Worker.
	Node, Step string
	Attempt    int
	Worker     string
	// QueuedAt, DispatchedAt, StartedAt and FinishedAt say where a step's time went;
	// the last two are by the worker's clock.
	QueuedAt, DispatchedAt, StartedAt, FinishedAt time.Time
	// Output is what came out, cut at a limit of the server (OutputTruncated). Its
	// Data is nil where the context stayed as it was.
	Output          Payload
	OutputTruncated bool
	// Answer of a gate or choose.
	Answer string
	// Failure, for what failed or was cancelled.
	Failure *Failure
	// DueAt is when the step will be tried again, or the timer fires.
	DueAt time.Time
	// Branch is the fork's branch, or the element's index or key.
	Branch string
	// Branches is their number, for a fan-out.
	Branches int
	// Position within the token's history. TokenID and Position name an entry.
	Position int
}

func instanceOf(p *wigglev1.Instance) *Instance {
	out := &Instance{
		ID: p.GetId(), Namespace: p.GetNamespace(), Workflow: p.GetWorkflow(), Version: int(p.GetVersion()),
		State: State(p.GetState()), CreatedAt: timeOf(p.GetCreatedAt()), EndedAt: timeOf(p.GetEndedAt()),
		Priority: int(p.GetPriority()), Failure: failureOf(p.GetFailure()),
		ActiveTokens: int(p.GetActiveTokens()), context: p.GetContext(),
	}
	for _, t := range p.GetTokens() {
		out.Tokens = append(out.Tokens, tokenOf(t))
	}
	return out
}

func tokenOf(p *wigglev1.Token) Token {
	return Token{
		ID: p.GetId(), ParentID: p.GetParentId(), Node: p.GetNode(),
		State: trimEnum(p.GetState().String(), "TOKEN_STATE_"), Attempt: int(p.GetAttempt()), Branch: p.GetBranch(),
		DueAt: timeOf(p.GetDueAt()), Worker: p.GetWorker(), LeaseExpiresAt: timeOf(p.GetLeaseExpiresAt()),
		LastFailure: failureOf(p.GetLastFailure()), PendingBranches: int(p.GetPendingBranches()),
	}
}

func failureOf(p *wigglev1.Failure) *Failure {
	if p == nil {
		return nil
	}
	return &Failure{
		Type: p.GetType(), Message: p.GetMessage(), Stack: p.GetStack(),
		Node: p.GetNode(), Attempt: int(p.GetAttempt()), Worker: p.GetWorker(),
	}
}

func historyOf(p *wigglev1.HistoryEntry) HistoryEntry {
	return HistoryEntry{
		Kind: trimEnum(p.GetKind().String(), "HISTORY_KIND_"), RecordedAt: timeOf(p.GetRecordedAt()),
		TokenID: p.GetTokenId(), ParentTokenID: p.GetParentTokenId(), Node: p.GetNode(), Step: p.GetStep(),
		Attempt: int(p.GetAttempt()), Worker: p.GetWorker(),
		QueuedAt: timeOf(p.GetQueuedAt()), DispatchedAt: timeOf(p.GetDispatchedAt()),
		StartedAt: timeOf(p.GetStartedAt()), FinishedAt: timeOf(p.GetFinishedAt()),
		Output:          Payload{ContentType: p.GetOutput().GetContentType(), Data: p.GetOutput().GetData()},
		OutputTruncated: p.GetOutputTruncated(), Answer: p.GetAnswer(), Failure: failureOf(p.GetFailure()),
		DueAt: timeOf(p.GetDueAt()), Branch: p.GetBranch(), Branches: int(p.GetBranches()), Position: int(p.GetPosition()),
	}
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func trimEnum(name, prefix string) string {
	if len(name) > len(prefix) && name[:len(prefix)] == prefix {
		return name[len(prefix):]
	}
	return name
}
