package placement_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/placement"
)

// update is for a new golden file only: changing a line of the old one sends retried starts to another shard.
var update = flag.Bool("update", false, "write testdata/placement.golden")

var october = time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)

func generations(tb testing.TB, weights ...map[int]float64) placement.Generations {
	tb.Helper()
	list := make([]placement.Generation, 0, len(weights))
	for i, w := range weights {
		list = append(list, placement.Generation{ID: i + 1, ActiveFrom: october.AddDate(0, i, 0), Weights: w})
	}
	g, err := placement.New(list)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

// ids are ULIDs as clients mint them: one after the other in time, with random entropy, and the same in every run.
func ids(n int, from time.Time) []ulid.ULID {
	random := rand.New(rand.NewPCG(20261001, 1))
	list := make([]ulid.ULID, n)
	for i := range list {
		var entropy [16]byte
		binary.BigEndian.PutUint64(entropy[:8], random.Uint64())
		binary.BigEndian.PutUint64(entropy[8:], random.Uint64())
		copy(list[i][6:], entropy[:10])
		if err := list[i].SetTime(ulid.Timestamp(from) + uint64(i/10)); err != nil {
			panic(err)
		}
	}
	return list
}

func TestSplitFollowsTheWeights(t *testing.T) { // SHD-4, SHD-20
	t.Parallel()
	const n = 100_000
	for _, weights := range []map[int]float64{
		{0: 1},
		{0: 1, 1: 1},
		{0: 1, 1: 1, 2: 3},
		{0: 0.2, 7: 0.2, 1000: 0.6, math.MaxInt32: 0.001},
		{3: 1e9, 4: 2e9, 5: 1},
		{0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 8},
	} {
		g := generations(t, weights)
		counts, sum := map[int]int{}, 0.0
		for _, w := range weights {
			sum += w
		}
		for _, u := range ids(n, october) {
			counts[placement.Place(g, u)]++
		}
		for shard, w := range weights {
			p := w / sum
			if d, sigma := float64(counts[shard])-n*p, math.Sqrt(n*p*(1-p)); math.Abs(d) > 3*sigma+1 {
				t.Errorf("weights %v: shard %d got %d, %.1f sigma from %.0f", weights, shard, counts[shard], d/sigma, n*p)
			}
		}
	}
}

func TestWeightZeroGetsNothing(t *testing.T) { // SHD-4
	t.Parallel()
	with, without := generations(t, map[int]float64{0: 0, 1: 1, 2: 1, 3: 0}), generations(t, map[int]float64{1: 1, 2: 1})
	for _, u := range ids(100_000, october) {
		shard := placement.Place(with, u)
		if shard != 1 && shard != 2 || shard != placement.Place(without, u) {
			t.Fatalf("%v is on shard %d", u, shard)
		}
	}
}

func TestAddedShardOnlyReceives(t *testing.T) { // SHD-4, SHD-23
	t.Parallel()
	const n = 100_000
	before := generations(t, map[int]float64{0: 1, 1: 2, 5: 1})
	after := generations(t, map[int]float64{0: 1, 1: 2, 3: 1, 5: 1})
	raised := generations(t, map[int]float64{0: 1, 1: 5, 5: 1})
	moved := 0
	for _, u := range ids(n, october) {
		old := placement.Place(before, u)
		if s := placement.Place(after, u); s != old {
			moved++
			if s != 3 {
				t.Fatalf("%v moved from %d to %d", u, old, s)
			}
		}
		if s := placement.Place(raised, u); s != old && s != 1 {
			t.Fatalf("%v moved from %d to %d", u, old, s)
		}
	}
	if d := math.Abs(float64(moved) - n/5); d > 3*math.Sqrt(n*0.2*0.8) {
		t.Errorf("%d moved, want a fifth", moved)
	}
}

func TestGenerationIsThatOfTheULIDsTime(t *testing.T) { // SHD-4, SHD-20
	t.Parallel()
	g := generations(t, map[int]float64{1: 1}, map[int]float64{2: 1}, map[int]float64{3: 1})
	november, december := october.AddDate(0, 1, 0), october.AddDate(0, 2, 0)
	for _, c := range []struct {
		at   time.Time
		want int
	}{
		{time.UnixMilli(0), 1}, // before the first: the first
		{october.Add(-time.Millisecond), 1},
		{october, 1},
		{november.Add(-time.Millisecond), 1},
		{november, 2},
		{november.In(time.FixedZone("", 3600)), 2},
		{december.Add(-time.Millisecond), 2},
		{december, 3},
		{ulid.Time(ulid.MaxTime()), 3},
	} {
		var u ulid.ULID
		if err := u.SetTime(ulid.Timestamp(c.at)); err != nil {
			t.Fatal(err)
		}
		if got, in := placement.Place(g, u), g.InForce(c.at); got != c.want || in.ID != c.want {
			t.Errorf("at %v: shard %d, generation %d, want %d", c.at, got, in.ID, c.want)
		}
	}
}

func TestInstantBetweenTwoMilliseconds(t *testing.T) { // SHD-20
	t.Parallel()
	second := october.Add(time.Hour + 300*time.Microsecond)
	g, err := placement.New([]placement.Generation{
		{ID: 1, ActiveFrom: october, Weights: map[int]float64{1: 1}},
		{ID: 2, ActiveFrom: second, Weights: map[int]float64{2: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for offset, want := range map[time.Duration]int{0: 1, time.Millisecond: 2} {
		at := october.Add(time.Hour + offset)
		var u ulid.ULID
		_ = u.SetTime(ulid.Timestamp(at))
		if got := placement.Place(g, u); got != want || g.InForce(at).ID != want {
			t.Errorf("at %v: shard %d, generation %d, want %d", at, got, g.InForce(at).ID, want)
		}
	}
}

func TestNewRefuses(t *testing.T) { // SHD-13
	t.Parallel()
	one := map[int]float64{0: 1}
	for name, list := range map[string][]placement.Generation{
		"empty":               nil,
		"no weights":          {{ID: 1}},
		"zero weights":        {{ID: 1, Weights: map[int]float64{0: 0}}},
		"negative weight":     {{ID: 1, Weights: map[int]float64{0: 1, 1: -1}}},
		"not a number":        {{ID: 1, Weights: map[int]float64{0: 1, 1: math.NaN()}}},
		"infinite":            {{ID: 1, Weights: map[int]float64{0: math.Inf(1)}}},
		"negative shard":      {{ID: 1, Weights: map[int]float64{-1: 1}}},
		"same id":             {{ID: 1, Weights: one}, {ID: 1, ActiveFrom: october, Weights: one}},
		"id goes back":        {{ID: 2, Weights: one}, {ID: 1, ActiveFrom: october, Weights: one}},
		"same instant":        {{ID: 1, ActiveFrom: october, Weights: one}, {ID: 2, ActiveFrom: october, Weights: one}},
		"instants going back": {{ID: 1, ActiveFrom: october, Weights: one}, {ID: 2, Weights: one}},
	} {
		if _, err := placement.New(list); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestGenerationsAreImmutable(t *testing.T) { // SHD-4
	t.Parallel()
	weights := map[int]float64{0: 1, 1: 1}
	g := generations(t, weights)
	u := ids(1, october)[0]
	want := placement.Place(g, u)
	delete(weights, want)
	delete(g.InForce(october).Weights, want)
	if got := placement.Place(g, u); got != want || len(g.InForce(october).Weights) != 2 {
		t.Errorf("placed on %d, then on %d", want, got)
	}
}

func TestGolden(t *testing.T) { // SHD-2, SHD-4: one id, one shard, in every release
	t.Parallel()
	g := generations(t, map[int]float64{0: 1, 1: 1}, map[int]float64{0: 1, 1: 1, 2: 3},
		map[int]float64{0: 0.5, 2: 3, 7: 1.25, 2147483647: 2})
	var b strings.Builder
	for month := range 4 {
		for _, u := range ids(100, october.AddDate(0, month-1, 0)) {
			fmt.Fprintln(&b, strings.ToLower(u.String()), placement.Place(g, u))
		}
	}
	const path = "testdata/placement.golden"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(b.String(), "\n"), strings.Split(string(want), "\n")
	if len(gotLines) != len(wantLines) {
		t.Fatalf("%d lines, want %d", len(gotLines), len(wantLines))
	}
	for i := range gotLines {
		if gotLines[i] != wantLines[i] {
			t.Errorf("line %d is %q, want %q", i+1, gotLines[i], wantLines[i])
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{1, 2, 8, 64} {
		weights := map[int]float64{}
		for shard := range n {
			weights[shard] = float64(1 + shard%3)
		}
		g, list := generations(b, weights), ids(1024, october)
		b.Run(fmt.Sprintf("shards=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				placement.Place(g, list[i%len(list)])
				i++
			}
		})
	}
}
