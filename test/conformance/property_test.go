package conformance

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
	"github.com/wiggle-run/wiggle/services/instances"
)

const (
	// envSeed plays one seed again, that of a failure.
	envSeed = "WIGGLE_CONFORMANCE_SEED"
	// definitions is how many random definitions are played.
	definitions = 10
)

// TestSameEndEverywhere: random definitions end the same, with the same history but
// for its order, in memory and on PostgreSQL, in batches of any size, over any number
// of shards, whatever the worker repeats, reorders or hands back (ENG-2, WRK-5, WRK-10,
// SHD-38), and whether it reports steps one by one or, in batched mode, several
// together with cuts at random (WRK-14).
func TestSameEndEverywhere(t *testing.T) {
	batches := func(n int) func(*instances.Config) {
		return func(c *instances.Config) { c.BatchSize = n }
	}
	twoShards := configuration{"two shards, batches of 256", onPostgres(t, 2, 1, batches(256))}
	configurations := []setting{
		{configuration{"memory", memory}, nil},
		{configuration{"one shard, batches of 1", onPostgres(t, 1, 1, batches(1))}, nil},
		{configuration{"one shard, batches of 256", onPostgres(t, 1, 1, batches(256))}, nil},
		{configuration{"two shards, batches of 1", onPostgres(t, 2, 1, batches(1))}, nil},
		{twoShards, nil},
		{configuration{"memory, batched mode", memory}, []wiggle.FlowOption{wiggle.Batched()}},
		{configuration{"two shards, batched mode", twoShards.server}, []wiggle.FlowOption{wiggle.Batched()}},
	}
	seeds := make([]uint64, definitions)
	for i := range seeds {
		seeds[i] = rand.Uint64()
	}
	if text := os.Getenv(envSeed); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", envSeed, err)
		}
		seeds = []uint64{seed}
	}
	t.Run("seeds", func(t *testing.T) {
		for _, seed := range seeds {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				sameEnd(t, seed, configurations)
			})
		}
	})
}

// setting is a configuration, and what is said of the flow on it.
type setting struct {
	configuration

	flow []wiggle.FlowOption
}

func sameEnd(t *testing.T, seed uint64, configurations []setting) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("play it again with %s=%d", envSeed, seed)
		}
	})
	var first story
	for i, c := range configurations {
		s := &schedule{Run: newRun(t, c.server(t)), rng: rand.New(rand.NewPCG(seed, uint64(i+2)))}
		s.RegisterFlow(randomFlow(seed, c.flow...))
		s.graph = s.Graph()
		got := s.play(someContext(seed))
		if i == 0 {
			first = got
			continue
		}
		if got.state != first.state || got.context != first.context {
			t.Errorf("%s: ended %s with %s, in memory %s with %s", c.name, got.state, got.context, first.state, first.context)
		}
		for _, e := range difference(got.entries, first.entries) {
			t.Errorf("%s: more often than in memory: %s", c.name, e)
		}
		for _, e := range difference(first.entries, got.entries) {
			t.Errorf("%s: less often than in memory: %s", c.name, e)
		}
	}
}

// story is what is left of an instance: its end, and its history without what depends
// on time, on order and on ids.
type story struct {
	state   wigglev1.InstanceState
	context string
	entries []string
}

// difference lists what a has more often than b.
func difference(a, b []string) []string {
	left := map[string]int{}
	for _, e := range b {
		left[e]++
	}
	var more []string
	for _, e := range a {
		if left[e]--; left[e] < 0 {
			more = append(more, e)
		}
	}
	return more
}

// schedule is a worker that answers in random order, repeats itself and hands back.
type schedule struct {
	*Run
	rng   *rand.Rand
	graph *definition.Graph
	// old are reports that were sent and applied.
	old []*wigglev1.StepReport
}

// chance is true so many times in a hundred.
func (s *schedule) chance(percent int) bool { return s.rng.IntN(100) < percent }

func (s *schedule) play(input string) story {
	s.Helper()
	s.Start(input)
	for !s.Ended() {
		if s.ctx.Err() != nil {
			s.Fatalf("the instance did not end: %v", s.Get())
		}
		tasks := s.Poll(Room(int32(1 + s.rng.IntN(20))))
		s.held = append(s.held, tasks...)
		if len(s.held) == 0 {
			s.pass()
			continue
		}
		s.rng.Shuffle(len(s.held), func(i, j int) { s.held[i], s.held[j] = s.held[j], s.held[i] })
		some := 1 + s.rng.IntN(len(s.held))
		now := s.held[:some]
		s.held = slices.Clone(s.held[some:])
		s.answer(now)
	}
	for batch := range slices.Chunk(s.old, batchMax) {
		s.send(batch) // after the end: nothing may come of it
	}
	s.See(Want{State: completed})
	in := s.Get()
	told := story{state: in.GetState(), context: string(in.GetContext().GetData())}
	for _, e := range s.History(wholeHistory) {
		told.entries = append(told.entries, strings.Join([]string{
			e.GetKind().String(), e.GetNode(), e.GetStep(), fmt.Sprint(e.GetAttempt()), e.GetBranch(), fmt.Sprint(e.GetBranches()),
			e.GetAnswer(), string(e.GetOutput().GetData()), e.GetFailure().GetType(),
		}, " | "))
	}
	return told
}

// answer reports in one batch, in which some reports come twice and some old ones again.
func (s *schedule) answer(tasks []*wigglev1.Task) {
	s.Helper()
	var batch []*wigglev1.StepReport
	for _, t := range tasks {
		if s.chance(10) {
			s.Applied("release", s.Release(t))
			continue
		}
		answer := decide(t)
		reply := answer(t)
		if reply.Fail != nil {
			for range 1 + s.rng.IntN(2) {
				if _, err := s.FailTask(t, answer); err != nil {
					s.Fatalf("fail %s: %v", t.GetStep(), err)
				}
			}
			continue
		}
		report := reportOf(t, reply)
		if t.GetBatched() {
			report = goOnAlone(s.graph, t, s.rng.IntN(6), decide)
		}
		for range 1 + s.rng.IntN(2) {
			batch = append(batch, report)
		}
	}
	fresh := len(batch)
	for range s.rng.IntN(4) {
		if len(s.old) > 0 {
			batch = append(batch, s.old[s.rng.IntN(len(s.old))])
		}
	}
	s.old = append(s.old, batch[:fresh]...)
	s.rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	if len(batch) > 0 {
		s.send(batch)
	}
}

// send reports what must be applied, or known to be.
func (s *schedule) send(batch []*wigglev1.StepReport) {
	s.Helper()
	for i, f := range s.ReportAll(batch...) {
		if f != nil {
			s.Fatalf("report %v: %v", batch[i], f)
		}
	}
}
