package placement

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/oklog/ulid/v2"
)

func TestLogarithmIsRight(t *testing.T) { // SHD-4
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	check := func(x float64) {
		got, want := ln(x), math.Log(x)
		if ulp := math.Nextafter(math.Abs(want), math.Inf(1)) - math.Abs(want); math.Abs(got-want) > ulp {
			t.Errorf("ln(%v) is %v, want %v", x, got, want)
		}
	}
	for range 100_000 {
		check((float64(random.Uint64()>>12) + 0.5) * 0x1p-52)
	}
	for _, x := range []float64{0x1p-53, 1 - 0x1p-53, 0.5, math.Sqrt2 / 2, 0.25, 0x1.8p-52} {
		check(x)
	}
}

func TestUniformIsStrictlyBetweenZeroAndOne(t *testing.T) { // SHD-4
	t.Parallel()
	const buckets, n = 64, 200_000
	random := rand.New(rand.NewPCG(3, 4))
	var counts [buckets]int
	for range n {
		u := uniform(randomULID(random), int(random.Int32()))
		if u <= 0 || u >= 1 {
			t.Fatalf("uniform is %v", u)
		}
		counts[int(u*buckets)]++
	}
	chi := 0.0
	for _, c := range counts {
		d := float64(c) - n/buckets
		chi += d * d / (n / buckets)
	}
	if chi > 103.4 { // 63 degrees of freedom, 0.1 %
		t.Errorf("chi-square %v", chi)
	}
}

func randomULID(random *rand.Rand) ulid.ULID {
	var u ulid.ULID
	for i := range u {
		u[i] = byte(random.Uint32())
	}
	return u
}
