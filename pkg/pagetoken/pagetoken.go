// Package pagetoken is the page token of lists that are merged over shards.
//
// A list is ordered by (created_at, ulid), newest first, and a token names the last row of a page: the next page
// starts after it. That makes a page independent of what is added meanwhile: new rows come before every token, so no
// page repeats or skips one (SHD-26). Router and instances processes read the same token, so that the router hands
// it to each shard as it came.
//
// A token also holds a hash of the filter that it was made for. A token is no secret and no proof: whoever makes one
// up gets another page of what they may see anyway.
package pagetoken

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Token names the last row of a page.
type Token struct {
	// CreatedAt is when the row's instance was started, to the microsecond (what PostgreSQL keeps). Encode drops
	// what is finer. Years 1 to 9999.
	CreatedAt time.Time
	// ULID is the instance's ulid, which orders rows of the same microsecond.
	ULID [16]byte
	// FilterHash is [FilterHash] of the list's filter.
	FilterHash uint64
}

// ErrMalformed tells that a string is not a token: cut, changed, or from a release that writes others.
var ErrMalformed = errors.New("the page token is not one that this server gave")

// ErrOtherFilter tells that a token belongs to a list with another filter.
var ErrOtherFilter = errors.New("the page token belongs to a list with another filter; " +
	"a page token goes with the filter of the list that gave it")

// The encoding is base64url without padding of: the version, microseconds since 1970, the ulid, the filter's hash, and
// a check over all of these, which finds a token that was cut or mixed up by hand.
const (
	version   = 1
	atTime    = 1
	atULID    = atTime + 8
	atFilter  = atULID + 16
	atCheck   = atFilter + 8
	size      = atCheck + 4
	minMicros = -62135596800000000 // 0001-01-01
	maxMicros = 253402300799999999 // 9999-12-31
)

var encoding = base64.RawURLEncoding.Strict()

// Encode gives the token's text: 50 letters of the base64url alphabet.
func Encode(t Token) string {
	var b [size]byte
	b[0] = version
	micros := min(max(t.CreatedAt.UnixMicro(), minMicros), maxMicros)
	binary.BigEndian.PutUint64(b[atTime:], uint64(micros))
	copy(b[atULID:], t.ULID[:])
	binary.BigEndian.PutUint64(b[atFilter:], t.FilterHash)
	binary.BigEndian.PutUint32(b[atCheck:], check(b[:atCheck]))
	return encoding.EncodeToString(b[:])
}

// Decode reads a token's text. Its error is [ErrMalformed].
func Decode(s string) (Token, error) {
	if len(s) != encoding.EncodedLen(size) {
		return Token{}, ErrMalformed
	}
	b, err := encoding.DecodeString(s)
	if err != nil || len(b) != size || b[0] != version ||
		binary.BigEndian.Uint32(b[atCheck:]) != check(b[:atCheck]) {
		return Token{}, ErrMalformed
	}
	micros := int64(binary.BigEndian.Uint64(b[atTime:])) //nolint:gosec // two's complement, as it was written
	if micros < minMicros || micros > maxMicros {
		return Token{}, ErrMalformed
	}
	t := Token{CreatedAt: time.UnixMicro(micros).UTC(), FilterHash: binary.BigEndian.Uint64(b[atFilter:])}
	copy(t.ULID[:], b[atULID:])
	return t, nil
}

func check(b []byte) uint32 { return uint32(xxh3.Hash(b)) } //nolint:gosec // half of a hash is a hash

// DecodeFor reads a token's text and checks that it belongs to a list with this filter. Its error is [ErrMalformed] or
// [ErrOtherFilter].
func DecodeFor(s string, filter *wigglev1.InstanceFilter) (Token, error) {
	t, err := Decode(s)
	if err != nil {
		return Token{}, err
	}
	if t.FilterHash != FilterHash(filter) {
		return Token{}, ErrOtherFilter
	}
	return t, nil
}

// Compare orders two rows as lists have them: negative if a comes before b, that is if a is newer.
func Compare(a, b Token) int {
	if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
		return c
	}
	return bytes.Compare(b.ULID[:], a.ULID[:])
}

// FilterHash hashes what a filter means: an absent filter, one that spells out the defaults, and one that names the
// states in another order are the same.
func FilterHash(f *wigglev1.InstanceFilter) uint64 {
	namespace := f.GetNamespace()
	if namespace == "" {
		namespace = "default"
	}
	states := slices.Clone(f.GetStates())
	slices.Sort(states)
	states = slices.Compact(states)

	var b []byte
	for _, s := range []string{namespace, f.GetWorkflow()} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.AppendUvarint(b, uint64(len(states)))
	for _, s := range states {
		b = binary.AppendVarint(b, int64(s))
	}
	b = appendInstant(b, f.GetCreatedFrom())
	b = appendInstant(b, f.GetCreatedBefore())
	return xxh3.Hash(b)
}

func appendInstant(b []byte, t *timestamppb.Timestamp) []byte {
	if t == nil {
		return append(b, 0)
	}
	b = append(b, 1)
	b = binary.AppendVarint(b, t.GetSeconds())
	return binary.AppendVarint(b, int64(t.GetNanos()))
}
