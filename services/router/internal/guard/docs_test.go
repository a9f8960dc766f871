package guard_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/services/router/internal/guard"
)

var update = flag.Bool("update", false, "rewrite the table in docs/permissions.md")

// The table of the documentation is what is enforced.
func TestDocumentedPermissions(t *testing.T) {
	t.Parallel()
	const page, head = "../../../../docs/permissions.md", "| call | needs |\n|---|---|\n"
	rules, err := guard.Rules(public...)
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for procedure, rule := range rules {
		if call, ok := strings.CutPrefix(procedure, "/wiggle.v1."); ok {
			rows = append(rows, fmt.Sprintf("| `%s` | %s |\n", call, rule.Needs))
		}
	}
	slices.Sort(rows)
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text, table, found := strings.Cut(string(data), head)
	if !found {
		t.Fatalf("%s has no table that begins with %q", page, head)
	}
	want := strings.Join(rows, "")
	if table == want {
		return
	}
	if !*update {
		t.Fatalf("the table in %s is not what the protos say: run the test with -update", page)
	}
	if err := os.WriteFile(page, []byte(text+head+want), 0o644); err != nil {
		t.Fatal(err)
	}
}
