package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/wiggle-run/wiggle/internal/devstack"
)

// dirPrefix starts the names of the directories of test servers; the process id of the owner follows.
const dirPrefix = "wiggle-pgtest-"

// StartServer starts a throwaway server for tests in a new directory. Directories of killed runs are cleared away.
func StartServer(ctx context.Context) (*devstack.Server, error) {
	return inNewDir(func(dir string) (*devstack.Server, error) {
		return devstack.StartServer(ctx, devstack.ServerConfig{
			Dir: dir, Profile: devstack.Throwaway, MaxConnections: 500, SharedBuffers: sharedBuffers,
			Settings: map[string]string{
				"wal_level":                 "replica",
				"autovacuum_naptime":        "60s",
				"deadlock_timeout":          "200ms",
				"max_prepared_transactions": "0",
			},
		})
	})
}

// StartReplica starts a streaming replica of a server of [StartServer] in a new directory, with further settings if there
// are any.
func StartReplica(ctx context.Context, primary *devstack.Server, settings map[string]string) (*devstack.Server, error) {
	return inNewDir(func(dir string) (*devstack.Server, error) {
		return devstack.StartReplica(ctx, primary, devstack.ServerConfig{Dir: dir, SharedBuffers: sharedBuffers, Settings: settings})
	})
}

const sharedBuffers = "64MB"

// inNewDir starts a server in a directory that is deleted again if that fails.
func inNewDir(start func(dir string) (*devstack.Server, error)) (*devstack.Server, error) {
	removeStale("/tmp")
	// Not os.TempDir: the server's account may be unable to enter it when we are root.
	dir, err := os.MkdirTemp("/tmp", dirPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // data/ below is 0700
		return nil, err
	}
	s, err := start(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// StopServer stops a server of [StartServer] or [StartReplica] and deletes its directory.
func StopServer(s *devstack.Server) error {
	return errors.Join(s.Stop(context.Background()), os.RemoveAll(s.Dir()))
}

// removeStale deletes the directories whose owners have ended without doing so.
func removeStale(tmp string) {
	dirs, _ := filepath.Glob(filepath.Join(tmp, dirPrefix+"*")) // only a malformed pattern fails
	for _, dir := range dirs {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		pid, err := strconv.Atoi(owner)
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) && devstack.Reset(dir) == nil {
			_ = os.RemoveAll(dir) // of another user: stays
		}
	}
}

// Environ returns the environment for a command that is to use the server.
func Environ(s *devstack.Server) []string {
	return append(os.Environ(), fmt.Sprintf("%s=%s", EnvURL, s.URL("postgres")))
}
