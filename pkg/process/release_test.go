package process

import (
	"os"
	"strings"
	"testing"
)

// OPS-4: what a binary says that it is comes from its module, or where that is not known from who built it.
func TestRelease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ linked, module, want string }{
		{"", "v1.4.0", "v1.4.0"},
		{"v1.5.0", "(devel)", "v1.5.0"},
		{"", "", "(devel)"},
	} {
		if got := releaseOf(c.linked, c.module); got != c.want {
			t.Errorf("linked with %q, module %q: %q", c.linked, c.module, got)
		}
	}
	script, err := os.ReadFile("../../scripts/image-binaries")
	if err != nil {
		t.Fatal(err)
	}
	// The linker passes over a name that does not exist: linkedRelease.
	if !strings.Contains(string(script), "-X github.com/wiggle-run/wiggle/pkg/process.linkedRelease=$release") {
		t.Error("scripts/image-binaries does not set the release")
	}
}
