package definition

import (
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// What a definition means where it says nothing.
const (
	// DefaultQueue is the queue of a step when neither the step nor the
	// definition's defaults name one.
	DefaultQueue = "default"
	// DefaultLoopBudget is how often a token may take the loop edges of a gate
	// that sets no budget.
	DefaultLoopBudget = 10_000
	// DefaultInitialBackoff is the pause after the first failed attempt.
	DefaultInitialBackoff = time.Second
	// DefaultMultiplier is what each further pause is multiplied by.
	DefaultMultiplier = 2.0
	// DefaultMaxBackoff is the longest pause.
	DefaultMaxBackoff = 5 * time.Minute
	// DefaultJitter is how far a pause varies around its value, as a fraction.
	DefaultJitter = 0.2
	// InheritPriority is the priority of a step that takes its instance's.
	InheritPriority = -1
)

// Kind is what a node is.
type Kind uint8

// The kinds of node. Task, gate and choose are run by workers, the rest by the
// server.
const (
	KindTask Kind = iota + 1
	KindGate
	KindChoose
	KindSleep
	KindFork
	KindForEach
	KindJoin
	KindEnd
)

// String is the kind's name in the definition's oneof, such as "for_each".
func (k Kind) String() string {
	switch k {
	case KindTask:
		return "task"
	case KindGate:
		return "gate"
	case KindChoose:
		return "choose"
	case KindSleep:
		return "sleep"
	case KindFork:
		return "fork"
	case KindForEach:
		return "for_each"
	case KindJoin:
		return "join"
	case KindEnd:
		return "end"
	}
	return "none"
}

// WorkerRun reports whether workers run nodes of this kind. The server runs the
// others.
func (k Kind) WorkerRun() bool {
	return k == KindTask || k == KindGate || k == KindChoose
}

// FanOut reports whether nodes of this kind start branches that a join closes.
func (k Kind) FanOut() bool {
	return k == KindFork || k == KindForEach
}

// Graph is a definition resolved: names, defaults, scopes and loops worked out
// once, so that a reader need not look at the messages again. It is the answer
// of [Analyze], holds no reference to the definition's messages and is safe for
// concurrent use as long as nobody changes it.
type Graph struct {
	// Name of the workflow.
	Name string
	// Version as the definition states it, 0 when it leaves it to the server.
	Version int32
	// Start is the id of the node where an instance starts.
	Start string
	// Batched tells that workers may run consecutive steps by themselves and report
	// them together.
	Batched bool
	// Nodes in the order of their ids (byte order).
	Nodes []Node

	byID map[string]int
}

// Node returns the node with the id, or nil when there is none.
func (g *Graph) Node(id string) *Node {
	i, ok := g.byID[id]
	if !ok {
		return nil
	}
	return &g.Nodes[i]
}

// Node is one node, resolved. Which fields are set depends on its kind; the
// others are zero.
type Node struct {
	// ID of the node in its definition.
	ID string
	// Kind of the node.
	Kind Kind

	// Scope is the id of the fork or for_each in whose branch the node runs, ""
	// outside of every fan-out. A fan-out, its join and its combine share the
	// scope that surrounds the fan-out.
	Scope string
	// Branch is the name of the fork's branch the node runs in; "" in a for_each
	// and outside.
	Branch string
	// Depth is the number of fan-outs around the node: 0 outside of all.
	Depth int

	// Step holds the settings of a task, a gate or a choose. Nil for the others.
	Step *Step

	// Next is what follows: after a task, a sleep, a gate's true, a join (whose
	// next is its combine). In a branch it may be the join of Scope, where the
	// branch arrives.
	Next string
	// Otherwise follows a gate's false. Empty: the instance ends well, or the
	// branch arrives at its join without a result.
	Otherwise string
	// Cases of a choose, by name in byte order.
	Cases []Case
	// Default follows a choose's answer that is no case. Empty: such an answer
	// fails the instance.
	Default string

	// LoopBudget is how often one token may take this gate's loop edges, the
	// default resolved. Set for every gate.
	LoopBudget int
	// NextLoops tells that a gate's edge Next is a loop edge: taking it spends
	// LoopBudget. See [Analyze] for which edges are.
	NextLoops bool
	// OtherwiseLoops tells the same of Otherwise.
	OtherwiseLoops bool

	// Effect tells that a task's result is dropped and the context stays.
	Effect bool
	// Combines is the join whose combine a task is, "" when it is none.
	Combines string

	// SleepFor is how long a sleep pauses, when SleepUntil is nil.
	SleepFor time.Duration
	// SleepUntil points to the instant in the context until which a sleep
	// pauses. Nil when the sleep has a duration.
	SleepUntil *Pointer

	// Branches of a fork, in the definition's order.
	Branches []Branch
	// Items points to a for_each's collection in the context. Set for every
	// for_each.
	Items *Pointer
	// Body is the first node of a for_each's branches.
	Body string
	// MaxInFlight is how many branches of a for_each may be under way at the
	// same time, 0 for all.
	MaxInFlight int
	// Join is the join that closes a fork or a for_each.
	Join string

	// FanOut is the fork or for_each that a join closes.
	FanOut string

	// Failed tells that an end fails the instance.
	Failed bool
	// Reason is why an end ends, for people.
	Reason string
}

// Follows returns what follows a choose's answer: the case's node, else Default.
// Empty means that the answer fails the instance.
func (n *Node) Follows(answer string) string {
	for _, c := range n.Cases {
		if c.Name == answer {
			return c.Next
		}
	}
	return n.Default
}

// Case is one case of a choose.
type Case struct {
	// Name that a worker answers with.
	Name string
	// Next is the id of the node that follows.
	Next string
}

// Branch is one branch of a fork.
type Branch struct {
	// Name by which the combine gets the branch's result.
	Name string
	// Start is the id of the branch's first node.
	Start string
}

// Step holds the settings of a worker-run node with the definition's and the
// server's defaults applied.
type Step struct {
	// Name of the step: the declared one, else the node's id. Unique.
	Name string
	// Activity is the name under which workers bind a handler: the declared
	// one, else the step's name.
	Activity string
	// Queue where the step waits for a worker.
	Queue string
	// Retry is what follows a failed attempt.
	Retry Retry
	// Timeout of one attempt, start to finish. 0 means none.
	Timeout time.Duration
	// Priority in the queue from 0 to 9, or [InheritPriority].
	Priority int
}

// Retry is a retry policy with its defaults applied.
type Retry struct {
	// MaxAttempts in all: 1 means no retry, 0 means unlimited.
	MaxAttempts int
	// InitialBackoff is the pause after the first failed attempt.
	InitialBackoff time.Duration
	// Multiplier of each further pause, at least 1.
	Multiplier float64
	// MaxBackoff is the longest pause, never shorter than InitialBackoff.
	MaxBackoff time.Duration
	// Jitter is how far a pause varies around its value, from 0 to 1.
	Jitter float64
	// NonRetryable are the error types that are never retried.
	NonRetryable []string
}

// Analyze resolves a definition. It returns problems, and no graph, exactly when
// [Validate] finds some without looking at limits and unknown fields: those say
// what may be registered, and a definition that was registered once stays
// readable when a limit is lowered.
//
// # Loop edges
//
// A loop edge is an edge of a gate that spends the gate's loop budget. They are
// chosen so that every loop passes one, deterministically, within each scope (a
// fan-out counts as one edge to its join):
//
//   - first every gate's edge that leads back to a node on the path by which a
//     depth-first search from the scope's start reached the gate, edges taken in
//     the order next, otherwise. In a graph whose loops are entered at one node
//     these are the edges to a node that dominates the gate: the plain repeat.
//   - where a loop remains (it leads back by a task's edge: gate, body, back to
//     the gate), the edges that stay in it of one gate: of the gates by which it
//     can be left the one found first, or of all when it cannot be left. This
//     repeats until no loop remains without a loop edge, so that a test inside a
//     loop does not spend a budget when the loop's own gate does.
//   - after 16 repetitions (loops within loops), every gate's edge that is still
//     in a loop.
func Analyze(d *wigglev1.Definition) (*Graph, *Problems) {
	return analyze(d)
}
