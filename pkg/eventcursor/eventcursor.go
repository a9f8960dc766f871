// Package eventcursor is the cursor of the event log: how far a reader is on each shard (EVT-5). Router and instances
// processes read the same text; to everybody else it is opaque.
//
// A cursor names, by shard, the number of the last entry that was read. A shard that it does not name was not read. It is
// no secret and no proof: whoever makes one up reads from another place what they may read anyway.
package eventcursor

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/zeebo/xxh3"
)

// Cursor is, by shard, the number of the last entry that was read. Numbers and shards are not negative.
type Cursor map[int]int64

// ErrMalformed tells that a string is not a cursor: cut, changed, or from a release that writes others.
var ErrMalformed = errors.New("the cursor is not one that this server gave")

// The encoding is base64url without padding of: the version, for each shard in their order how much its number is above the
// one before (from -1) and the entry's number, both as varints of the shortest form, and a check over all of these.
const (
	version  = 1
	checkLen = 4
	maxShard = 1<<31 - 1
	// MaxText bounds the text of a cursor.
	MaxText = 64 << 10
)

var encoding = base64.RawURLEncoding.Strict()

// Encode gives the cursor's text, which is never empty.
func Encode(c Cursor) string {
	b := make([]byte, 1, 1+8*len(c)+checkLen)
	b[0] = version
	before := -1
	for _, shard := range slices.Sorted(maps.Keys(c)) {
		b = binary.AppendUvarint(b, uint64(shard-before)) //nolint:gosec // rising
		b = binary.AppendUvarint(b, uint64(c[shard]))     //nolint:gosec // not negative
		before = shard
	}
	b = binary.BigEndian.AppendUint32(b, check(b))
	return encoding.EncodeToString(b)
}

func check(b []byte) uint32 { return uint32(xxh3.Hash(b)) } //nolint:gosec // half of a hash is a hash

// Decode reads a cursor's text. Its error is [ErrMalformed].
func Decode(s string) (Cursor, error) {
	if len(s) > MaxText {
		return nil, ErrMalformed
	}
	b, err := encoding.DecodeString(s)
	if err != nil || len(b) < 1+checkLen || b[0] != version {
		return nil, ErrMalformed
	}
	body := b[:len(b)-checkLen]
	if binary.BigEndian.Uint32(b[len(body):]) != check(body) {
		return nil, ErrMalformed
	}
	c := Cursor{}
	shard := -1
	for rest := body[1:]; len(rest) > 0; {
		var step, seq uint64
		var ok bool
		step, rest, ok = uvarint(rest)
		if !ok || step == 0 || step > maxShard+1 || int(step) > maxShard-shard {
			return nil, ErrMalformed
		}
		if seq, rest, ok = uvarint(rest); !ok || seq > 1<<63-1 {
			return nil, ErrMalformed
		}
		shard += int(step)
		c[shard] = int64(seq)
	}
	return c, nil
}

// uvarint reads a varint in its shortest form.
func uvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 || n > 1 && b[n-1] == 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}
