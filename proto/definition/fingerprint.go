package definition

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// fingerprintDomain opens the canonical form. Another form gets another number.
const fingerprintDomain = "wiggle.v1.Definition/1\n"

// Fingerprint is SHA-256 over the canonical form of a definition: its name,
// start, nodes by id and defaults; not its version (WF-10). Equal fingerprints
// mean the same graph.
//
// It compares structure, not meaning: a definition that spells out a default
// (queue "default", durable mode) is another one than a definition that leaves
// it out, and the order of branches and of non-retryable errors counts. An
// absent step, kind or set of defaults equals an empty one; an absent duration,
// retry policy, priority or jitter does not equal a zero one, as that means
// something else. Unknown fields do not count; [Validate] refuses them.
//
// The form is written here field by field, so that it depends neither on how
// protobuf serialises nor on the order of maps. Every field is its number in the
// proto, the length of its value as a uvarint, and its value; a field with its
// zero value is left out, so that a field added to the protos later leaves the
// fingerprints of definitions without it as they are. Definitions are stored
// with their fingerprints: the form must never change.
func Fingerprint(d *wigglev1.Definition) [32]byte {
	var c canon
	c.text(1, d.GetName())
	c.text(3, d.GetStart())
	for _, id := range slices.Sorted(maps.Keys(d.GetNodes())) {
		var entry canon
		entry.text(1, id)
		entry.message(2, canonNode(d.GetNodes()[id]))
		c.message(4, entry)
	}
	if defaults := canonDefaults(d.GetDefaults()); len(defaults) > 0 {
		c.message(5, defaults)
	}
	return sha256.Sum256(append([]byte(fingerprintDomain), c...))
}

// canon is a message in canonical form.
type canon []byte

func (c *canon) bytes(field uint64, value []byte) {
	*c = binary.AppendUvarint(*c, field)
	*c = binary.AppendUvarint(*c, uint64(len(value)))
	*c = append(*c, value...)
}

// message writes a message, also an empty one: that it is there counts.
func (c *canon) message(field uint64, value canon) { c.bytes(field, value) }

// text writes a string unless it is empty.
func (c *canon) text(field uint64, value string) {
	if value != "" {
		c.bytes(field, []byte(value))
	}
}

// presentInt writes a number, also 0, as eight bytes, big-endian.
func (c *canon) presentInt(field uint64, value int64) {
	c.bytes(field, binary.BigEndian.AppendUint64(nil, uint64(value))) //nolint:gosec // its bits
}

// int writes a number unless it is 0.
func (c *canon) int(field uint64, value int64) {
	if value != 0 {
		c.presentInt(field, value)
	}
}

// flag writes a boolean when it is true.
func (c *canon) flag(field uint64, value bool) {
	if value {
		c.bytes(field, []byte{1})
	}
}

// presentFloat writes a number as its IEEE 754 bits, big-endian; a negative zero
// as zero, as they mean the same, and every NaN as one.
func (c *canon) presentFloat(field uint64, value float64) {
	switch {
	case value == 0:
		value = 0
	case math.IsNaN(value):
		value = math.NaN()
	}
	c.bytes(field, binary.BigEndian.AppendUint64(nil, math.Float64bits(value)))
}

// duration writes a duration unless it is absent.
func (c *canon) duration(field uint64, value *durationpb.Duration) {
	if value != nil {
		var d canon
		d.int(1, value.GetSeconds())
		d.int(2, int64(value.GetNanos()))
		c.message(field, d)
	}
}

// step writes a step unless it is absent or empty.
func (c *canon) step(field uint64, value *wigglev1.Step) {
	if s := canonStep(value); len(s) > 0 {
		c.message(field, s)
	}
}

// retry writes a retry policy unless it is absent.
func (c *canon) retry(field uint64, value *wigglev1.RetryPolicy) {
	if value != nil {
		c.message(field, canonRetry(value))
	}
}

func canonDefaults(m *wigglev1.Defaults) (c canon) {
	c.text(1, m.GetQueue())
	c.retry(2, m.GetRetry())
	c.duration(3, m.GetTimeout())
	c.int(4, int64(m.GetMode()))
	return c
}

func canonStep(m *wigglev1.Step) (c canon) {
	c.text(1, m.GetName())
	c.text(2, m.GetActivity())
	c.text(3, m.GetQueue())
	c.retry(4, m.GetRetry())
	c.duration(5, m.GetTimeout())
	if m != nil && m.Priority != nil {
		c.presentInt(6, int64(m.GetPriority()))
	}
	return c
}

func canonRetry(m *wigglev1.RetryPolicy) (c canon) {
	c.int(1, int64(m.GetMaxAttempts()))
	c.duration(2, m.GetInitialBackoff())
	if m.GetMultiplier() != 0 {
		c.presentFloat(3, m.GetMultiplier())
	}
	c.duration(4, m.GetMaxBackoff())
	if m.Jitter != nil {
		c.presentFloat(5, m.GetJitter())
	}
	for _, name := range m.GetNonRetryableErrors() {
		c.bytes(6, []byte(name)) // also an empty one: it is an element
	}
	return c
}

func canonNode(m *wigglev1.Node) (c canon) {
	switch k := m.GetKind().(type) {
	case *wigglev1.Node_Task:
		if k != nil {
			c.message(1, canonTask(k.Task))
		}
	case *wigglev1.Node_Gate:
		if k != nil {
			c.message(2, canonGate(k.Gate))
		}
	case *wigglev1.Node_Choose:
		if k != nil {
			c.message(3, canonChoose(k.Choose))
		}
	case *wigglev1.Node_Sleep:
		if k != nil {
			c.message(4, canonSleep(k.Sleep))
		}
	case *wigglev1.Node_Fork:
		if k != nil {
			c.message(7, canonFork(k.Fork))
		}
	case *wigglev1.Node_ForEach:
		if k != nil {
			c.message(8, canonForEach(k.ForEach))
		}
	case *wigglev1.Node_Join:
		if k != nil {
			c.message(9, canonJoin(k.Join))
		}
	case *wigglev1.Node_End:
		if k != nil {
			c.message(10, canonEnd(k.End))
		}
	}
	return c
}

func canonTask(m *wigglev1.TaskNode) (c canon) {
	c.step(1, m.GetStep())
	c.text(2, m.GetNext())
	c.flag(3, m.GetEffect())
	return c
}

func canonGate(m *wigglev1.GateNode) (c canon) {
	c.step(1, m.GetStep())
	c.text(2, m.GetNext())
	c.text(3, m.GetOtherwise())
	c.int(4, int64(m.GetLoopBudget()))
	return c
}

func canonChoose(m *wigglev1.ChooseNode) (c canon) {
	c.step(1, m.GetStep())
	for _, name := range slices.Sorted(maps.Keys(m.GetCases())) {
		var entry canon
		entry.text(1, name)
		entry.text(2, m.GetCases()[name])
		c.message(2, entry)
	}
	c.text(3, m.GetDefault())
	return c
}

func canonSleep(m *wigglev1.SleepNode) (c canon) {
	switch u := m.GetUntil().(type) {
	case *wigglev1.SleepNode_Duration:
		if u != nil {
			var d canon
			d.int(1, u.Duration.GetSeconds())
			d.int(2, int64(u.Duration.GetNanos()))
			c.message(1, d)
		}
	case *wigglev1.SleepNode_Instant:
		if u != nil {
			c.bytes(2, []byte(u.Instant)) // also an empty one: it is chosen
		}
	}
	c.text(3, m.GetNext())
	return c
}

func canonFork(m *wigglev1.ForkNode) (c canon) {
	for _, branch := range m.GetBranches() {
		var b canon
		b.text(1, branch.GetName())
		b.text(2, branch.GetStart())
		c.message(1, b)
	}
	c.text(2, m.GetJoin())
	return c
}

func canonForEach(m *wigglev1.ForEachNode) (c canon) {
	c.text(1, m.GetItems())
	c.text(2, m.GetBody())
	c.text(3, m.GetJoin())
	c.int(4, int64(m.GetMaxInFlight()))
	return c
}

func canonJoin(m *wigglev1.JoinNode) (c canon) {
	c.text(1, m.GetNext())
	return c
}

func canonEnd(m *wigglev1.EndNode) (c canon) {
	c.flag(1, m.GetFailed())
	c.text(2, m.GetReason())
	return c
}
