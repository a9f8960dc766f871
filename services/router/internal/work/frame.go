package work

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/wiggle-run/wiggle/pkg/faults"
)

// Fields of WorkRequest and WorkResponse that the router reads.
const (
	fieldHello    = 1
	fieldReports  = 2
	fieldFailures = 3
	fieldBeats    = 4
	fieldReleases = 5
	fieldCredits  = 6
	fieldRevoke   = 7
	fieldReceived = 8
	fieldLook     = 9

	fieldTasks    = 1
	fieldRevoked  = 7
	fieldDraining = 8
)

const (
	// maxItems is how many items of a kind one message may carry.
	maxItems = 1000
	// maxCredits is how many credits a worker may have.
	maxCredits = 100_000
)

// request is a message of a worker. What it holds are parts of the bytes that came.
type request struct {
	bytes    []byte
	hello    []byte // nil: none
	items    []item
	credits  int
	revoke   int
	received int64
	look     bool
}

// item is one report, failure, beat or release.
type item struct {
	field protowire.Number
	bytes []byte // with the tag
	// taskID and lease are what its answer names.
	taskID string
	lease  []byte
	denied error // why it goes nowhere: the worker may have nothing to do with the task, or that is not known
}

// settles tells whether the worker is through with the task.
func (i item) settles() bool { return i.field != fieldBeats }

// parseRequest reads a worker's message. It does not look into payloads.
func parseRequest(b []byte) (*request, error) {
	r := &request{bytes: b}
	var counts [fieldReleases + 1]int
	err := eachField(b, func(f field) error {
		switch f.number {
		case fieldHello:
			if f.kind != protowire.BytesType {
				return malformed("hello")
			}
			r.hello = append(append(make([]byte, 0, len(r.hello)+len(f.value)), r.hello...), f.value...) // repeated: merged
		case fieldReports, fieldFailures, fieldBeats, fieldReleases:
			if counts[f.number]++; counts[f.number] > maxItems {
				return faults.InvalidArgument("the message has more than %d %s", maxItems, itemName(f.number))
			}
			it, err := parseItem(f)
			r.items = append(r.items, it)
			return err
		case fieldCredits, fieldRevoke, fieldReceived, fieldLook:
			if f.kind != protowire.VarintType {
				return malformed("a number")
			}
			return r.number(f)
		}
		return nil
	})
	return r, err
}

func (r *request) number(f field) error {
	n := int64(f.varint) //nolint:gosec // bits, as protobuf has them
	switch f.number {
	case fieldCredits:
		r.credits = int(int32(n)) //nolint:gosec // as generated code reads it
	case fieldRevoke:
		r.revoke = int(int32(n)) //nolint:gosec // as generated code reads it
	case fieldReceived:
		r.received = n
	case fieldLook:
		r.look = f.varint != 0
	}
	if r.credits < 0 || r.credits > maxCredits || r.revoke < 0 || r.revoke > maxCredits || r.received < 0 {
		return faults.InvalidArgument("credits %d, revoke %d or received %d is out of bounds: want 0 to %d, and received from 0",
			r.credits, r.revoke, r.received, maxCredits)
	}
	return nil
}

func itemName(n protowire.Number) string {
	return [...]string{fieldReports: "reports", fieldFailures: "failures", fieldBeats: "beats", fieldReleases: "releases"}[n]
}

func malformed(what string) error {
	return faults.InvalidArgument("malformed message: %s of it is no protobuf of WorkRequest", what)
}

// parseItem reads which task an item is about.
func parseItem(f field) (item, error) {
	it := item{field: f.number, bytes: f.bytes}
	if f.kind != protowire.BytesType {
		return it, malformed(itemName(f.number))
	}
	id, lease := protowire.Number(1), protowire.Number(2)
	if f.number == fieldFailures {
		id, lease = 2, 3
	}
	err := eachField(f.value, func(f field) error {
		if f.number != id && f.number != lease {
			return nil
		}
		if f.kind != protowire.BytesType || !utf8.Valid(f.value) {
			return malformed("a task's id or lease")
		}
		if f.number == id {
			it.taskID = string(f.value)
		} else {
			it.lease = f.value
		}
		return nil
	})
	return it, err
}

// field is one field of a message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	bytes  []byte // with the tag
	value  []byte // of BytesType
	varint uint64 // of VarintType
}

// eachField calls f with each field in turn.
func eachField(b []byte, f func(field) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return malformed("a tag")
		}
		at := field{number: number, kind: kind}
		var size int
		switch kind {
		case protowire.BytesType:
			at.value, size = protowire.ConsumeBytes(b[n:])
		case protowire.VarintType:
			at.varint, size = protowire.ConsumeVarint(b[n:])
		default:
			size = protowire.ConsumeFieldValue(number, kind, b[n:])
		}
		if size < 0 {
			return malformed(fmt.Sprintf("field %d", number))
		}
		at.bytes = b[: n+size : n+size]
		if err := f(at); err != nil {
			return err
		}
		b = b[n+size:]
	}
	return nil
}

// controls are the numbers of a message to a shard.
type controls struct {
	credits, revoke int
	received        int64
	look            bool
}

// forward is the message as it goes to the only shard that it concerns: as it came,
// with what the router says otherwise behind. Of a number that is there twice the last
// counts.
func (r *request) forward(c controls) []byte {
	b := slices.Clip(r.bytes)
	if c.credits != r.credits {
		b = appendNumber(b, fieldCredits, int64(c.credits))
	}
	if c.revoke != r.revoke {
		b = appendNumber(b, fieldRevoke, int64(c.revoke))
	}
	if c.received != r.received {
		b = appendNumber(b, fieldReceived, c.received)
	}
	if c.look != r.look {
		b = appendNumber(b, fieldLook, protowire.EncodeBool(c.look))
	}
	return b
}

// part is a message of some of a message's items.
func part(items []item, c controls) []byte {
	size := 0
	for _, it := range items {
		size += len(it.bytes)
	}
	b := make([]byte, 0, size+32)
	for _, it := range items {
		b = append(b, it.bytes...)
	}
	return append(b, c.message()...)
}

// message is a message of numbers alone.
func (c controls) message() []byte {
	var b []byte
	if c.credits > 0 {
		b = appendNumber(b, fieldCredits, int64(c.credits))
	}
	if c.revoke > 0 {
		b = appendNumber(b, fieldRevoke, int64(c.revoke))
	}
	if c.received > 0 {
		b = appendNumber(b, fieldReceived, c.received)
	}
	if c.look {
		b = appendNumber(b, fieldLook, uint64(1))
	}
	return b
}

func appendNumber[T int64 | uint64](b []byte, n protowire.Number, value T) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(value))
}

// response is a message of a shard.
type response struct {
	bytes    []byte
	tasks    int
	answers  bool // it holds something else for the worker
	revoked  int
	draining bool
}

// parseResponse reads how many tasks a shard's message brings and what it says to the
// router.
func parseResponse(b []byte) (response, error) {
	r := response{bytes: b}
	err := eachField(b, func(f field) error {
		switch {
		case f.number == fieldTasks:
			r.tasks++
		case f.number == fieldRevoked && f.kind == protowire.VarintType:
			r.revoked = int(int32(f.varint)) //nolint:gosec // as generated code reads it
		case f.number == fieldDraining && f.kind == protowire.VarintType:
			r.draining = f.varint != 0
		default:
			r.answers = true
		}
		return nil
	})
	return r, err
}

// forward is the message as it goes to the worker: what the shard says to the router is
// not for the worker.
func (r response) forward() []byte {
	b := slices.Clip(r.bytes)
	if r.revoked != 0 {
		b = appendNumber(b, fieldRevoked, int64(0))
	}
	if r.draining {
		b = appendNumber(b, fieldDraining, int64(0))
	}
	return b
}

// told is a message of the router's own to the worker.
func told(revoked int, draining bool) []byte {
	var b []byte
	if revoked > 0 {
		b = appendNumber(b, fieldRevoked, int64(revoked))
	}
	if draining {
		b = appendNumber(b, fieldDraining, int64(1))
	}
	return b
}
