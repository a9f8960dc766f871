package procfs

import (
	"os"
	"testing"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	got, ok := parseStat("42 (a) (b c) S 7 42 42 0 -1 4194560 1 2 3 4 250 50 100 20 20 0 1 0 99 0 0")
	if want := (times{parent: 7, own: 3, children: 1.2}); !ok || got != want {
		t.Errorf("%+v, %v, want %+v", got, ok, want)
	}
	for _, bad := range []string{"", "42 (x", "42 (x) S 7", "42 (x) S a 42 42 0 -1 4194560 1 2 3 4 250 50 100 20"} {
		if got, ok := parseStat(bad); ok {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

// TestOwn: this process has used some of both.
func TestOwn(t *testing.T) {
	t.Parallel()
	pid := os.Getpid()
	if own, family := ResidentBytes(pid), ResidentBytesOfFamily(pid); own < 64<<10 || family < own {
		t.Errorf("%d bytes are resident, %d with children", own, family)
	}
	if own, family := CPUSeconds(pid), CPUSecondsOfFamily(pid); own < 0 || family < own {
		t.Errorf("%v s of CPU, %v with children", own, family)
	}
	if Field("/proc/self/status", "Name") == "" || Field("/proc/self/status", "Nothing") != "" || Field("/no/such/file", "Name") != "" {
		t.Error("fields are not found, or found where there are none")
	}
}
