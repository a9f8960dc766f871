package definition

import (
	"math/rand/v2"
	"testing"
)

// TestEditDistance compares the banded distance with the plain one.
func TestEditDistance(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		w := make([]byte, r.IntN(9))
		for i := range w {
			w[i] = 'a' + byte(r.IntN(3))
		}
		return string(w)
	}
	for range 20_000 {
		a, b, limit := word(), word(), 1+r.IntN(4)
		if got, want := editDistance(a, b, limit), min(plainDistance(a, b), limit); got != want {
			t.Fatalf("%q, %q below %d: got %d, want %d", a, b, limit, got, want)
		}
	}
}

func plainDistance(a, b string) int {
	if a == "" || b == "" {
		return len(a) + len(b)
	}
	if a[0] == b[0] {
		return plainDistance(a[1:], b[1:])
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// TestHintBudget stops suggesting when it has compared enough.
func TestHintBudget(t *testing.T) {
	t.Parallel()
	n := newNearest([]string{"validate"})
	if got := n.hint("validat"); got != `; did you mean "validate"?` {
		t.Errorf("hint %q", got)
	}
	n.budget = 0
	if got := n.hint("validat"); got != "" {
		t.Errorf("hint %q past the budget", got)
	}
}
