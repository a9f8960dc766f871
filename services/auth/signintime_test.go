package auth

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/password"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

const (
	// timedRounds is how often each name is tried, once in a round; rounds before them warm up. Of so many the ranks can still be
	// tellingDeviations and more.
	timedRounds, warmRounds = 32, 3
	// tellingPart is the part of a sign-in's time by which names may differ, tellingDeviations how improbable a difference must
	// be for it to be one of the names and not of the machine: about once in 150 000 runs.
	tellingPart, tellingDeviations = 0.15, 4.5
)

// AUT-7: with the parameters that are in use a name that is none takes the time of one that is, and so does the name of a
// disabled account, even with its password. The names are tried in rounds, each in an order of its own, and held against each
// other within the round: what else the machine does meets all of them.
func TestUnknownNamesTakeTheTimeOfKnown(t *testing.T) { //nolint:paralleltest // it measures: other tests are to wait
	s := newScene(t)
	i := s.start(withRoot, func(c *Config) { c.passwords = password.DefaultParams() })
	root := i.as(i.signIn(rootName, rootWord))
	i.account(root, "gone", "instance.read")
	disabled := true
	if _, err := i.UpdateAccount(root, &wigglev1.UpdateAccountRequest{Name: "gone", Disabled: &disabled}); err != nil {
		t.Fatal(err)
	}
	tries := []*wigglev1.SignInRequest{
		{Name: rootName, Password: "not the password"}, {Name: "nobody", Password: "not the password"}, {Name: "gone", Password: someWord},
	}
	pair, _, _ := policy.TryLimits()
	stranger := from(t.Context(), "198.51.100.7")
	took := make([][]time.Duration, len(tries))
	for round := range warmRounds + timedRounds {
		s.clock.Advance(pair.Every) // no limit is met
		for _, n := range rand.Perm(len(tries)) {
			d := i.timeOf(stranger, tries[n])
			if round >= warmRounds {
				took[n] = append(took[n], d)
			}
		}
	}
	for n := range tries[1:] {
		other := n + 1
		middle, difference, deviations := compareTimes(took[0], took[other])
		part := float64(difference) / float64(middle)
		t.Logf("%s: %s at the median; %s: %s more in the middle of the rounds (%.1f %%), %.1f standard deviations",
			tries[0].GetName(), middle, tries[other].GetName(), difference, 100*part, deviations)
		if math.Abs(part) > tellingPart && math.Abs(deviations) > tellingDeviations {
			t.Errorf("%s can be told from %s by the time that a sign-in takes", tries[other].GetName(), tries[0].GetName())
		}
	}
}

// timeOf is how long a sign-in took that was refused.
func (i *instance) timeOf(ctx context.Context, req *wigglev1.SignInRequest) time.Duration {
	i.Helper()
	began := time.Now()
	_, err := i.SignIn(ctx, req)
	took := time.Since(began)
	if faults.CodeOf(err) != faults.CodeUnauthenticated {
		i.Fatalf("%s: %v", req.GetName(), err)
	}
	return took
}

// compareTimes holds two series against each other, pair by pair: the median of the first, the median of what the second took
// more, and by Wilcoxon's signed ranks how many standard deviations that is from nothing.
func compareTimes(a, b []time.Duration) (middle, difference time.Duration, deviations float64) {
	differences := make([]time.Duration, len(a))
	for n := range a {
		differences[n] = b[n] - a[n]
	}
	middle, difference = median(a), median(differences)
	slices.SortFunc(differences, func(x, y time.Duration) int { return cmp.Compare(x.Abs(), y.Abs()) })
	sum, squares := 0.0, 0.0
	for n, d := range differences {
		rank := float64(n + 1)
		squares += rank * rank
		sum += rank * float64(cmp.Compare(d, 0))
	}
	return middle, difference, sum / math.Sqrt(squares)
}

func median(list []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(list))[len(list)/2]
}

// The comparison tells a difference through noise of its size, and finds none where there is none.
func TestCompareTimes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	series := func(shift time.Duration) []time.Duration {
		list := make([]time.Duration, timedRounds)
		for n := range list {
			list[n] = 20*time.Millisecond + shift + time.Duration(random.ExpFloat64()*float64(10*time.Millisecond))
		}
		return list
	}
	for _, c := range []struct {
		shift time.Duration
		tells bool
	}{{0, false}, {30 * time.Millisecond, true}, {-30 * time.Millisecond, true}} {
		_, difference, deviations := compareTimes(series(0), series(c.shift))
		if (math.Abs(deviations) > tellingDeviations) != c.tells || c.tells && (difference > 0) != (c.shift > 0) {
			t.Errorf("shifted by %s: %s, %.1f deviations", c.shift, difference, deviations)
		}
	}
}
