package cli

import (
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
)

func TestBenchUsage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "missing SCENARIO"},
		{[]string{"chian"}, `there is no scenario "chian"; there are limit, chain, one`},
		{[]string{"timers", "--mode", "batched"}, "timers runs no chain of steps"},
		{[]string{"chain", "--in-flight", "100,0"}, "--in-flight 0: use 1 to"},
		{[]string{"chain", "--postgres", "fsync"}, "want name=value"},
		{[]string{"chain", "--server", "http://127.0.0.1:1", "--profile", "cpu"}, "--profile reaches only"},
	} {
		if r := run(t, nil, "", append([]string{"bench"}, test.args...)...); r.code != shell.ExitUsage || !strings.Contains(r.err, test.want) || r.out != "" {
			t.Errorf("%q: code %d, want %d and %q:\n%s%s", test.args, r.code, shell.ExitUsage, test.want, r.out, r.err)
		}
	}
}
