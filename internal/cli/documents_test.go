package cli

import (
	"os"
	"testing"
)

// TestDocuments holds the documents against the code that they are generated from.
func TestDocuments(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"../../docs/settings.md": SettingsPage(), "../../docs/cli.md": CommandsPage()} {
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is not what the code says (%v): run go generate ./internal/cli", path, err)
		}
	}
}
