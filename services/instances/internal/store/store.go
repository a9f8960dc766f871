// Package store says what the engine needs of the database of one shard, and
// holds what its two implementations share: pgstore keeps a shard in PostgreSQL,
// memstore in memory for the test server. storetest is the suite that both pass.
//
// Every change of instances goes through [Store.Update]: it locks and loads what
// a batch of events needs, lets the caller put the machine's changes into the
// [World], and writes them in one transaction. Claims and heartbeats, which
// concern single tokens, are guarded statements of their own.
//
// Lock order: instances by id, then tokens by id. A claim takes only tokens that
// nobody holds and waits for none, so batches of different processes do not
// deadlock.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/wiggle-run/wiggle/pkg/permission"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// Errors of stores. What goes wrong with a database itself is classified by
// package postgres.
var (
	// ErrNotFound: there is no such instance or definition.
	ErrNotFound = errors.New("not found")
	// ErrConflict: another graph is stored under the same version.
	ErrConflict = errors.New("another graph is registered under this version")
)

// Store is one shard's database. Methods are safe for concurrent use.
//
//nolint:interfacebloat // a seam between an engine and a database, with two implementations and one suite
type Store interface {
	// Update runs one batch of events as one transaction. It locks and loads what
	// keys name, calls apply, and writes what apply put into the world. It may call
	// apply again with a fresh world when nothing was written (a deadlock, a start
	// that another process made meanwhile), so apply must not act outside the
	// world. If apply returns an error nothing is written and Update returns it.
	Update(ctx context.Context, keys Keys, apply func(*World) error) error
	// Advance writes reports that concern one leased token each, without reading: a
	// move is written if its token still is what From says, under the same lease and
	// at the same position, and nobody else holds it; else nothing of it is. It tells
	// which were written. No token may be in two moves. With an error it is not known
	// which were; all may go the way of Update then, which knows them again.
	Advance(ctx context.Context, now time.Time, moves []Move) ([]bool, error)
	// Claim leases up to c.Max dispatchable tokens: by priority, then the older
	// instance (WRK-7). Tokens that come with an error are leased and should be
	// handed back: what goes with them could not be read.
	Claim(ctx context.Context, c Claim) ([]Claimed, error)
	// Beat extends leases. Its answers are in the order of beats.
	Beat(ctx context.Context, beats []Beat) ([]BeatResult, error)
	// Tick takes or renews the shard's sweep lease for holder and, with look, tells
	// what there is to do (ENG-19). It is one statement. A look costs as much as there
	// are leases and entries that vacuum has not taken away.
	Tick(ctx context.Context, holder string, term time.Duration, look bool) (Tick, error)
	// Due lists tokens whose time comes no later than the given one, soonest first.
	Due(ctx context.Context, before time.Time, limit int) ([]TokenRef, error)
	// Expired lists leased tokens whose lease or timeout is over.
	Expired(ctx context.Context, limit int) ([]TokenRef, error)

	// Backlog counts the tokens that may be claimed, of each queue up to limit, and tells
	// for how long the oldest of those has been waiting. A queue without any is left out.
	Backlog(ctx context.Context, queues []QueueKey, limit int) ([]QueueBacklog, error)

	// Instance reads one instance; with tokens, up to limit of its unsettled ones,
	// oldest first and without their View and Progress, and how many there are. While
	// the instance runs its Context is its first token's view.
	Instance(ctx context.Context, id machine.ID, tokens int) (InstanceView, error)
	// Instances reads instances by their ids, each with its Context as Instance has it: of the first ids as many as
	// maxBytes of contexts allow, at least one. The answer is as long as what was read, with nil for what is not there.
	Instances(ctx context.Context, ids []machine.ID, maxBytes int) ([]*machine.Instance, error)
	// Scan lists instances by id, and tells whether there are more behind them.
	Scan(ctx context.Context, q Scan) (list []*machine.Instance, more bool, err error)
	// Ended tells which of the instances are terminal, or not there.
	Ended(ctx context.Context, ids []machine.ID) ([]machine.ID, error)
	// History reads an instance's history after a position, oldest first.
	History(ctx context.Context, id machine.ID, after HistoryKey, limit int) ([]HistoryRow, error)
	// List lists instances, newest first, after a key. Context is not filled.
	List(ctx context.Context, f Filter, after ListKey, limit int) ([]*machine.Instance, error)
	// Count counts instances by state.
	Count(ctx context.Context, f Filter) (map[machine.InstanceState]int64, error)

	Definitions
	Events
	Subjects
}

// Definitions is the part of a store that keeps workflow definitions.
type Definitions interface {
	// Register gives a definition its version on the home shard (WF-11): it loads
	// the workflow's versions under a lock, lets choose decide, and writes the
	// definition that choose returns, unless that is one of the versions.
	Register(ctx context.Context, namespace, workflow string, choose Choose) (d Definition, created bool, err error)
	// PutDefinitions writes definitions that home registered. Repeating it is
	// safe; ErrConflict if another graph has the version. It answers the revision
	// up to which the shard now has all of home's definitions, given that the
	// caller sends them without gaps from the revision it was told.
	PutDefinitions(ctx context.Context, ds []Definition) (revision int64, err error)
	// ListDefinitions reads definitions by revision.
	ListDefinitions(ctx context.Context, q DefinitionQuery) ([]Definition, error)
	// Definition reads one version; 0 is the latest. ErrNotFound.
	Definition(ctx context.Context, namespace, workflow string, version int32) (Definition, error)
	// Revision is the highest revision that the shard has.
	Revision(ctx context.Context) (int64, error)
}

// Choose decides which definition a registration stands for, given the versions
// that the workflow has: one of them, or a new one.
type Choose = func(versions []Definition) (Definition, error)

// Definition is a stored definition.
type Definition struct {
	Namespace    string
	Workflow     string
	Version      int32
	Fingerprint  [32]byte
	Revision     int64
	RegisteredAt time.Time
	Graph        *wigglev1.Definition
}

// DefinitionQuery narrows a list of definitions.
type DefinitionQuery struct {
	// AfterRevision excludes what was registered up to it.
	AfterRevision int64
	// Namespace and Workflow narrow, unless empty.
	Namespace, Workflow string
	// Limit bounds the answer. It must be positive.
	Limit int
}

// Keys name what a batch needs.
type Keys struct {
	// Instances are locked and loaded, whether they exist or not.
	Instances []machine.ID
	// Tokens are locked and loaded with their parents.
	Tokens []machine.ID
	// Latest are workflows whose latest version is looked up.
	Latest []WorkflowKey
	// Leases are looked up in the history where the token does not know them any
	// more, so that a report sent twice is known after its token is gone (WRK-5).
	Leases []Lease
}

// Move takes one token from a step that was reported to the next, READY or leased
// again. Nothing else of the instance changes: its changes are [Simple], and a lease.
type Move struct {
	// Namespace of the instance.
	Namespace string
	From, To  *machine.Token
	Entry     machine.Entry
}

// Simple tells whether changes are one token's step to the next, which can be written
// without a look at anything else.
func Simple(from *machine.Token, c *machine.Changes) bool {
	if c.Instance != nil || c.Ended || c.Duplicate || len(c.Created)+len(c.Merged)+len(c.LetIn)+len(c.Events) > 0 ||
		len(c.Updated) != 1 || len(c.History) != 1 {
		return false
	}
	to := c.Updated[0]
	return to.ID == from.ID && from.State == machine.Leased && to.State == machine.Ready && !from.Held && !to.Held &&
		from.DueAt.IsZero() && to.DueAt.IsZero() && from.Width == 0 && to.Width == 0 &&
		to.Position == from.Position+1 && to.Settled.Fence == from.Fence && to.Settled.By == machine.ByReport &&
		to.Failure == nil && to.Progress.Absent()
}

// WorkflowKey names a workflow.
type WorkflowKey struct{ Namespace, Workflow string }

// Lease names one lease of one token.
type Lease struct {
	Instance, Token machine.ID
	Fence           int64
}

// Claim asks for tokens.
type Claim struct {
	Namespace string
	Queues    []string
	// Workflows narrows to what the worker serves; empty means everything.
	Workflows []Binding
	Worker    string
	Lease     time.Duration
	Max       int
	// MaxBytes stops the claim from gathering payloads without bound. 0 means
	// [DefaultClaimBytes]. The first token is always taken.
	MaxBytes int
	// SharedBases says that the context around branches is sent once for all tasks
	// of a parent.
	SharedBases bool
}

// DefaultClaimBytes bounds the payloads of one claim: two of the largest, and little
// enough for an answer to get through while its poll waits.
const DefaultClaimBytes = 4 << 20

// Binding names a version of a workflow; 0 means every version.
type Binding struct {
	Workflow string
	Version  int32
}

// Claimed is a token that is leased now, with what its task carries beside it.
type Claimed struct {
	Token    *machine.Token
	Instance *machine.Instance // without Context
	// Base is the parent's view, in a branch.
	Base machine.Payload
	// Parent is the parent as it was, where whoever leased the token had it in hand.
	Parent *machine.Token
	// Results are the children, by index, for a combine.
	Results []Result
}

// Result is what one branch brought to its join.
type Result struct {
	Index     int32
	Key       string
	HasResult bool
	View      machine.Payload
}

// Beat extends one lease.
type Beat struct {
	Token    machine.ID
	Fence    int64
	Extend   time.Duration
	Progress machine.Payload
}

// BeatResult tells when the lease ends; zero if it is lost.
type BeatResult struct{ LeaseUntil time.Time }

// Tick tells what there is to do on a shard. Without a look only Now and Holder are
// known.
type Tick struct {
	// Now is the time by the shard's clock.
	Now time.Time
	// Holder says whether the caller holds the sweep lease until the term is over.
	Holder bool
	// NextDue is the earliest time at which a token's timer is due; zero if none.
	NextDue time.Time
	// NextExpiry is the earliest end of a lease; zero if none is held, or the caller
	// does not hold the sweep lease.
	NextExpiry time.Time
	// Ready are queues with tokens that may be claimed.
	Ready []QueueKey
}

// QueueKey names a queue.
type QueueKey struct{ Namespace, Queue string }

// QueueBacklog is what waits in a queue.
type QueueBacklog struct {
	QueueKey
	// Tokens is how many.
	Tokens int
	// Oldest is for how long the oldest of them has been waiting.
	Oldest time.Duration
}

// TokenRef names a token that a sweep has to look at.
type TokenRef struct {
	Instance, Token machine.ID
	Fence           int64
	DueAt           time.Time
}

// InstanceView is an instance as it is read.
type InstanceView struct {
	Instance *machine.Instance
	Tokens   []*machine.Token
	// Active is how many unsettled tokens there are.
	Active int
}

// HistoryKey orders an instance's history. The zero key is before all of it.
type HistoryKey struct {
	RecordedAt time.Time
	Order      int32
	Token      machine.ID
	Position   int32
}

// HistoryRow is one entry with its key.
type HistoryRow struct {
	Key   HistoryKey
	Entry *wigglev1.HistoryEntry
}

// Filter narrows lists and counts.
type Filter struct {
	Namespace string
	Workflow  string
	States    []machine.InstanceState
	// From and Before bound the time of the start: From <= t < Before. Zero is open.
	From, Before time.Time
	// Only are the workflows that whoever asks may see; nil for all.
	Only *permission.Names
}

// Scan asks for a part of all instances, by id.
type Scan struct {
	// After excludes ids up to it. The zero id is before all.
	After machine.ID
	// Namespace and Workflow narrow, unless empty.
	Namespace, Workflow string
	// Limit bounds the answer. It must be positive.
	Limit int
	// MaxBytes bounds the contexts of an answer, which has at least one instance.
	MaxBytes int
	// HeadsOnly leaves contexts out.
	HeadsOnly bool
}

// ListKey orders lists: newest first, then by id. The zero key is before all.
type ListKey struct {
	CreatedAt time.Time
	ID        machine.ID
}
