package app_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/router"
)

// TestServicesRefuseBrokenTopologies: what `wiggle topology check` refuses by the
// document alone, no service starts with; it says all that is wrong and no password
// (SHD-13). What takes facts is tested where the facts are: services/instances.
func TestServicesRefuseBrokenTopologies(t *testing.T) {
	t.Parallel()
	wants, err := filepath.Glob("../../pkg/topology/testdata/broken/*.want")
	if err != nil || len(wants) < 20 {
		t.Fatalf("%d broken topologies, %v", len(wants), err)
	}
	for name, main := range map[string]func(context.Context, []string) error{"instances": instances.Main, "router": router.Main} {
		for _, path := range wants {
			document := strings.TrimSuffix(path, ".want")
			if _, err := os.Stat(document + ".facts.json"); err == nil {
				continue
			}
			t.Run(name+"/"+filepath.Base(document), func(t *testing.T) {
				t.Parallel()
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				refusal := main(t.Context(), []string{
					"WIGGLE_STORAGE_TOPOLOGY=" + document + ".json", "WIGGLE_INSTANCES_URLS=http://127.0.0.1:1", "WIGGLE_AUTH=off",
					"WIGGLE_DB_USER=wiggle", "WIGGLE_DB_PASSWORD=env-0nly-s3cr3t",
				})
				if refusal == nil {
					t.Fatal("the service started")
				}
				for line := range strings.Lines(string(want)) {
					if line = strings.TrimSpace(line); !strings.Contains(refusal.Error(), line) {
						t.Errorf("the refusal does not say %q: %v", line, refusal)
					}
				}
				for _, secret := range []string{"s3cr3t-p4ss", "env-0nly-s3cr3t"} {
					if strings.Contains(refusal.Error(), secret) {
						t.Error("the refusal shows a password")
					}
				}
			})
		}
	}
}
