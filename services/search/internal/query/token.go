package query

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
)

var (
	errMalformed   = errors.New("the page token is not one that this server gave")
	errOtherSearch = errors.New("the page token belongs to another search; a page token goes with the query and filter that gave it")
)

// MaxShards is how many search shards a page token has room for.
const MaxShards = 32

// place is where a list goes on.
type place struct {
	// hash is that of the query and its filter.
	hash uint64
	// after is the last hit; nil at the beginning of a round.
	after *searchstore.Position
	// windows are those of the round, by shard, where hits are ranked. Shards that have no more are not in it.
	windows map[int]searchstore.Window
}

// searchHash hashes what a search means, without its page.
func searchHash(req *wigglev1.SearchRequest, namespace string) (uint64, error) {
	part := &wigglev1.SearchRequest{Query: req.GetQuery(), Filter: &wigglev1.SearchFilter{}}
	if req.GetFilter() != nil {
		part.Filter = proto.CloneOf(req.GetFilter())
	}
	part.Filter.Namespace = namespace
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(part)
	return xxh3.Hash(b), err
}

// The encoding is base64url without padding of: the version, the flags, the hash, the last hit if there is one (rank,
// microseconds since 1970, ulid), for each shard its number, flags and bounds, and a check over all of these.
const (
	tokenVersion = 1
	hasAfter     = 1
	isRanked     = 2

	hasUpper = 1
	hasLower = 2
	isKnown  = 4

	checkBytes = 4
)

func (p *place) encode() string {
	flags := byte(0)
	if p.after != nil {
		flags |= hasAfter
	}
	if p.windows != nil {
		flags |= isRanked
	}
	b := binary.BigEndian.AppendUint64([]byte{tokenVersion, flags}, p.hash)
	if p.after != nil {
		b = binary.BigEndian.AppendUint32(b, math.Float32bits(p.after.Rank))
		b = appendTime(b, p.after.CreatedAt)
		b = append(b, p.after.ULID[:]...)
	}
	for shard, w := range p.windows {
		flags := byte(0)
		if !w.Upper.IsZero() {
			flags |= hasUpper
		}
		if !w.Lower.IsZero() {
			flags |= hasLower
		}
		if w.Known {
			flags |= isKnown
		}
		b = append(binary.AppendUvarint(b, uint64(shard)), flags) //nolint:gosec // not negative
		if !w.Upper.IsZero() {
			b = appendTime(b, w.Upper)
		}
		if !w.Lower.IsZero() {
			b = appendTime(b, w.Lower)
		}
	}
	b = binary.BigEndian.AppendUint32(b, uint32(xxh3.Hash(b))) //nolint:gosec // half of a hash is a hash
	return base64.RawURLEncoding.EncodeToString(b)
}

func appendTime(b []byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(t.UnixMicro()))
}

// tokenReader reads an encoding; what is missing makes it bad.
type tokenReader struct {
	b   []byte
	bad bool
}

func (r *tokenReader) take(n int) []byte {
	if len(r.b) < n {
		r.bad = true
		return make([]byte, n)
	}
	part := r.b[:n]
	r.b = r.b[n:]
	return part
}

func (r *tokenReader) time() time.Time {
	return time.UnixMicro(int64(binary.BigEndian.Uint64(r.take(8)))).UTC() //nolint:gosec // bits
}

// decode reads a token that belongs to a search with this hash.
func decode(text string, hash uint64) (*place, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < checkBytes || b[0] != tokenVersion {
		return nil, errMalformed
	}
	b, check := b[:len(b)-checkBytes], b[len(b)-checkBytes:]
	if binary.BigEndian.Uint32(check) != uint32(xxh3.Hash(b)) { //nolint:gosec // half of a hash is a hash
		return nil, errMalformed
	}
	r := &tokenReader{b: b}
	flags := r.take(2)[1]
	p := &place{hash: binary.BigEndian.Uint64(r.take(8))}
	if flags&hasAfter != 0 {
		p.after = &searchstore.Position{Rank: math.Float32frombits(binary.BigEndian.Uint32(r.take(4))), CreatedAt: r.time()}
		copy(p.after.ULID[:], r.take(16))
	}
	if flags&isRanked != 0 {
		p.windows = map[int]searchstore.Window{}
	}
	for len(r.b) > 0 && !r.bad {
		shard, w := r.window()
		if p.windows == nil {
			return nil, errMalformed
		}
		p.windows[shard] = w
	}
	switch {
	case r.bad:
		return nil, errMalformed
	case p.hash != hash:
		return nil, errOtherSearch
	}
	return p, nil
}

func (r *tokenReader) window() (int, searchstore.Window) {
	shard, n := binary.Uvarint(r.b)
	if n <= 0 || shard > math.MaxInt32 {
		r.bad = true
		return 0, searchstore.Window{}
	}
	r.take(n)
	flags := r.take(1)[0]
	w := searchstore.Window{Known: flags&isKnown != 0}
	if flags&hasUpper != 0 {
		w.Upper = r.time()
	}
	if flags&hasLower != 0 {
		w.Lower = r.time()
	}
	return int(shard), w
}
