package spelling_test

import (
	"testing"

	"github.com/wiggle-run/wiggle/pkg/spelling"
)

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"same", "same", 0}, {"ab", "ba", 2},
	} {
		if got, back := spelling.Distance(c.a, c.b), spelling.Distance(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%q and %q are %d and %d apart, want %d", c.a, c.b, got, back, c.want)
		}
	}
}
