package demo

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/definitionfile"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// differs are the files below examples and deploy with the process in them, and in what each is meant to differ from Flow.
var differs = map[string]func(d *wigglev1.Definition){
	// The worker in TypeScript takes one step from a queue of its own.
	"examples/typescript/order-fulfilment.yaml": func(d *wigglev1.Definition) {
		d.GetNodes()["label"].GetTask().Step = &wigglev1.Step{Queue: "typescript"}
	},
}

// TestExamplesFollow: who changes the process changes it in the examples too.
func TestExamplesFollow(t *testing.T) {
	t.Parallel()
	const root = "../.."
	var found []string
	for _, pattern := range []string{"examples/*/" + Workflow + ".*", "deploy/*/" + Workflow + ".*"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			name, err := filepath.Rel(root, path)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, filepath.ToSlash(name))
		}
	}
	for name, change := range differs {
		if !slices.Contains(found, name) {
			t.Errorf("there is no %s", name)
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := definitionfile.Parse(name, text)
		if err != nil {
			t.Fatal(err)
		}
		want := Flow().Proto()
		change(want)
		if differences := definition.Diff(want, got); len(differences) > 0 {
			t.Errorf("%s is not the process of Flow, or differs in more than it is meant to:\n%s", name, strings.Join(differences, "\n"))
		}
	}
	for _, name := range found {
		if differs[name] == nil {
			t.Errorf("%s is held against nothing: say in this test in what it differs from Flow", name)
		}
	}
}
