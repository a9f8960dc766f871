package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wiggle-run/wiggle/pkg/spelling"
)

// Role is something that a shard holds.
type Role string

// The roles, in the order in which Roles lists them.
const (
	RoleInstances Role = "instances" // instances, their tokens, timers, events and history
	RoleHome      Role = "home"      // also the cluster-wide rows: registry, schedules, plan, leadership; legacy ids route to it
	RoleAuth      Role = "auth"      // accounts, sessions, keys, audit
	RoleSearch    Role = "search"    // search documents
)

// Roles is a set of roles, in the order of the constants and without repetition once resolved.
type Roles []Role

// Has reports whether r is in the set.
func (rs Roles) Has(r Role) bool { return slices.Contains(rs, r) }

// String returns the names with commas between them.
func (rs Roles) String() string { return join(rs, ",") }

// State is where a shard is in its life; it only moves forward (SHD-21).
type State string

// The states, in the order in which a shard goes through them.
const (
	StateActive   State = "active"   // may be weighted
	StateDraining State = "draining" // serves what it holds, mints nothing
	StateRetired  State = "retired"  // holds nothing any more; no connection is opened to it
)

// Fallback is what a read that tolerates staleness does when no replica is healthy (REP-3).
type Fallback string

// The fallbacks.
const (
	FallbackPrimary Fallback = "primary" // read from the primary
	FallbackFail    Fallback = "fail"    // answer UNAVAILABLE
)

// Commit is what a commit on a shard waits for (REP-11).
type Commit string

// The commit levels, from the weakest.
const (
	CommitLocal   Commit = "local"   // flushed on the primary
	CommitQuorum  Commit = "quorum"  // flushed on enough synchronous standbys
	CommitApplied Commit = "applied" // visible on them
)

func allRoles() []Role         { return []Role{RoleInstances, RoleHome, RoleAuth, RoleSearch} }
func allStates() []State       { return []State{StateActive, StateDraining, StateRetired} }
func allFallbacks() []Fallback { return []Fallback{FallbackPrimary, FallbackFail} }
func allCommits() []Commit     { return []Commit{CommitLocal, CommitQuorum, CommitApplied} }

// match finds text among known, in any case.
func match[T ~string](text string, known []T) (T, bool) {
	for _, k := range known {
		if strings.EqualFold(text, string(k)) {
			return k, true
		}
	}
	return "", false
}

// mismatch says that shown, a value of what, is none of known, and which of these it may have meant.
func mismatch[T ~string](what, shown string, known []T) string {
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	return fmt.Sprintf("%s %s is none of %s; the nearest is %s", what, quote(shown), strings.Join(names, ", "), nearest(shown, names))
}

func join[T ~string](list []T, separator string) string {
	var b strings.Builder
	for i, t := range list {
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(string(t))
	}
	return b.String()
}

// quotedText bounds, in bytes, how much of a word an error repeats.
const quotedText = 40

func quote(text string) string {
	if len(text) > quotedText {
		return fmt.Sprintf("%+q...", text[:quotedText])
	}
	return fmt.Sprintf("%+q", text)
}

// nearest returns the one of known, which is not empty, with the least edit distance to text, in any case; the first
// of several.
func nearest(text string, known []string) string {
	text = strings.ToLower(text[:min(len(text), quotedText)])
	best, least := known[0], len(text)+quotedText
	for _, k := range known {
		if d := spelling.Distance(text, strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}
