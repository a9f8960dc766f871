package placement

import (
	"encoding/binary"
	"math"

	"github.com/oklog/ulid/v2"
	"github.com/zeebo/xxh3"
)

// rendezvous picks the shard with the highest score for u; of equal scores, that of the lowest shard id.
//
// Rendezvous hashing is by Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (IEEE/ACM
// Transactions on Networking 6(1), 1998). The weighted form, score = -w / ln(h) with h uniform in (0, 1), is by Resch,
// "New Hashing Algorithms for Data Storage" (Storage Developer Conference, 2015). It is right because -ln(h)/w is exponentially
// distributed with rate w, and the least of several exponentials is the i-th with probability w_i / sum(w). A shard's
// score depends on no other shard, so a change of one weight moves only ids to or from that shard.
func rendezvous(shards []weighted, u ulid.ULID) int {
	best, bestScore := shards[0].shard, math.Inf(-1)
	for _, s := range shards {
		if score := -s.weight / ln(uniform(u, s.shard)); score > bestScore {
			best, bestScore = s.shard, score
		}
	}
	return best
}

// uniform hashes u and shard to a number strictly between 0 and 1: the xxh3-64 of the ULID's 16 bytes followed by the
// shard as 8 bytes, big endian, of which the upper 52 bits choose one of 2^52 equal intervals, and its middle is taken.
// With 52 bits the middle is exact; with 53 the last one would round to 1, whose logarithm is 0.
func uniform(u ulid.ULID, shard int) float64 {
	var key [24]byte
	copy(key[:], u[:])
	binary.BigEndian.PutUint64(key[16:], uint64(shard)) //nolint:gosec // shards are not negative
	return (float64(xxh3.Hash(key[:])>>12) + 0.5) * 0x1p-52
}

// ln is the natural logarithm of a normal x > 0, bit for bit the same on every platform; math.Log is not, as it is assembly
// on some and lets the compiler fuse multiplications and additions on others, and two routers must not differ in a last bit.
// Every product is therefore rounded by a conversion, which the language says forbids fusing.
//
// The method and constants are those of FreeBSD's e_log.c (Sun Microsystems, 1993), as in Go's math package: x = 2^k (1+f)
// with sqrt(2)/2 < 1+f < sqrt(2), and a polynomial in (f/(2+f))^2. The error is below one unit in the last place.
func ln(x float64) float64 {
	const (
		ln2Hi = 6.93147180369123816490e-01
		ln2Lo = 1.90821492927058770002e-10
		l1    = 6.666666666666735130e-01
		l2    = 3.999999999940941908e-01
		l3    = 2.857142874366239149e-01
		l4    = 2.222219843214978396e-01
		l5    = 1.818357216161805012e-01
		l6    = 1.531383769920937332e-01
		l7    = 1.479819860511658591e-01
	)
	f, exponent := math.Frexp(x)
	if f < math.Sqrt2/2 {
		f *= 2
		exponent--
	}
	f--
	k := float64(exponent)

	s := f / (2 + f)
	s2 := float64(s * s)
	s4 := float64(s2 * s2)
	odd := float64(s2 * (l1 + float64(s4*(l3+float64(s4*(l5+float64(s4*l7)))))))
	even := float64(s4 * (l2 + float64(s4*(l4+float64(s4*l6)))))
	half := float64(float64(0.5*f) * f)
	tail := float64(s*(half+odd+even)) + float64(k*ln2Lo)
	return float64(k*ln2Hi) - ((half - tail) - f)
}
