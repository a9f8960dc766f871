package devstack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperEnv); dir != "" {
		if err := runHelper(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const (
	helperEnv   = "WIGGLE_DEVSTACK_TEST_DIR"
	helperReady = "ready"
)

// runHelper is the process that the tests kill: it starts a server, says so by a file, and waits.
func runHelper(dir string) error {
	s, err := StartServer(context.Background(), ServerConfig{Dir: dir, Profile: Throwaway})
	if err != nil {
		return err
	}
	runtime.GC() // threads come and go; the server must not care
	if err := os.WriteFile(filepath.Join(dir, helperReady), nil, 0o600); err != nil {
		return err
	}
	<-s.Exited()
	return nil
}

// testDir is a directory that the server's account can reach, which t.TempDir is not for root.
func testDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "wiggle-devstack-test-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
