package shardid

import (
	"fmt"
	"math"
	"strconv"

	"github.com/oklog/ulid/v2"
)

const (
	// MaxLength is the longest id accepted, in bytes.
	MaxLength = 128

	// MaxShard is the highest shard number. Shards are kept as PostgreSQL integers, so it is the highest int32.
	MaxShard = math.MaxInt32

	// HomeShard is what ID.Shard answers for a legacy id: the shard it lives on is the home shard of the cluster, which
	// only the topology knows. It is never a real shard, as those are not negative.
	HomeShard = -1
)

// Kind says what an id names.
type Kind uint8

const (
	// KindInstance marks the id of a workflow instance; its prefix is wfi.
	KindInstance Kind = iota + 1
	// KindToken marks the id of a token, one point of execution in an instance; its prefix is tok.
	KindToken
)

// String returns "instance", "token", or "unknown" for the zero Kind.
func (k Kind) String() string {
	switch k {
	case KindInstance:
		return "instance"
	case KindToken:
		return "token"
	default:
		return "unknown"
	}
}

func (k Kind) prefix() string {
	if k == KindToken {
		return "tok"
	}
	return "wfi"
}

// ID is the id of an instance or a token. It is a comparable value; the zero ID names nothing and prints as "".
type ID struct {
	kind    Kind
	hasULID bool
	shard   int32
	ulid    ulid.ULID
	// legacy is the whole text of an id in an older form, as these cannot be rebuilt from their parts. Empty otherwise.
	legacy string
}

// NewInstance mints the id of an instance on shard. It panics if shard is not in 0..MaxShard: shards come from a
// topology, which has checked them, so another number is a mistake in the caller.
func NewInstance(shard int, u ulid.ULID) ID { return mint(KindInstance, shard, u) }

// NewToken mints the id of a token on shard, which must be its instance's; ID.Token does that by itself. It panics if shard
// is not in 0..MaxShard.
func NewToken(shard int, u ulid.ULID) ID { return mint(KindToken, shard, u) }

func mint(kind Kind, shard int, u ulid.ULID) ID {
	if shard < 0 || shard > MaxShard {
		panic(fmt.Sprintf("shardid: shard %d is not in 0..%d", shard, MaxShard))
	}
	return ID{kind: kind, hasULID: true, shard: int32(shard), ulid: u}
}

// Token derives the id of a token of the instance (or of a sibling of the token) that id names. It carries the same
// shard; derived from a legacy id it is a bare id, tok_{ulid}, which routes to the home shard as id does (SHD-3).
func (id ID) Token(u ulid.ULID) ID { return id.derive(KindToken, u) }

// Child derives the id of a child instance, on the same shard; derived from a legacy id it is a bare id, wfi_{ulid}.
func (id ID) Child(u ulid.ULID) ID { return id.derive(KindInstance, u) }

func (id ID) derive(kind Kind, u ulid.ULID) ID {
	if !id.IsLegacy() {
		return ID{kind: kind, hasULID: true, shard: id.shard, ulid: u}
	}
	text := make([]byte, 0, len("wfi_")+ulid.EncodedSize)
	text = append(append(text, kind.prefix()...), '_')
	// No ULID is set: the body of a bare id is opaque, so that this value equals what parsing its text gives.
	return ID{kind: kind, legacy: string(appendULID(text, u))}
}

// Kind says what the id names. The ids of the removed coordinator do not tell: Parse and ParseInstance call them
// instances, ParseToken calls them tokens.
func (id ID) Kind() Kind { return id.kind }

// Shard is the shard the id was minted for, or HomeShard if it is a legacy id.
func (id ID) Shard() int {
	if id.IsLegacy() {
		return HomeShard
	}
	return int(id.shard)
}

// Route is the shard the id routes to in a cluster whose home shard is home.
func (id ID) Route(home int) int {
	if id.IsLegacy() {
		return home
	}
	return int(id.shard)
}

// Home reports whether the id routes to the home shard whichever that is; the same as IsLegacy.
func (id ID) Home() bool { return id.IsLegacy() }

// IsLegacy reports whether the id has one of the forms from before sharded ids.
func (id ID) IsLegacy() bool { return id.legacy != "" }

// IsZero reports whether id is the zero ID.
func (id ID) IsZero() bool { return id == ID{} }

// ULID returns the ULID in the id. Sharded ids and those of the removed coordinator have one; bare ids do not, even where
// their body looks like one.
func (id ID) ULID() (u ulid.ULID, ok bool) { return id.ulid, id.hasULID }

// String returns the text of the id, exactly as it was parsed or as it was minted.
func (id ID) String() string {
	if id.legacy != "" || id.kind == 0 {
		return id.legacy
	}
	var buf [len("wfi.s") + 10 + len(".") + ulid.EncodedSize]byte
	return string(id.Append(buf[:0]))
}

// Append appends the text of the id to dst and returns the result.
func (id ID) Append(dst []byte) []byte {
	if id.legacy != "" || id.kind == 0 {
		return append(dst, id.legacy...)
	}
	dst = append(append(dst, id.kind.prefix()...), ".s"...)
	dst = strconv.AppendInt(dst, int64(id.shard), 10)
	return appendULID(append(dst, '.'), id.ulid)
}
