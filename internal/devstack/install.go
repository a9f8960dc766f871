package devstack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// installTimeout bounds one run of a package manager.
const installTimeout = 10 * time.Minute

// packageManager is a way to install without being asked anything.
type packageManager struct {
	program string
	hint    string
	run     func(ctx context.Context) error
}

func packageManagers() []packageManager {
	return []packageManager{
		{program: "apt-get", hint: "apt-get install postgresql", run: installApt},
		{program: "apk", hint: "apk add postgresql", run: func(ctx context.Context) error {
			return command(ctx, nil, "apk", "add", "--no-cache", "postgresql", "postgresql-contrib")
		}},
		{program: "dnf", hint: "dnf install postgresql-server", run: func(ctx context.Context) error {
			return command(ctx, nil, "dnf", "install", "-y", "--setopt=install_weak_deps=False", "postgresql-server", "postgresql-contrib")
		}},
	}
}

// installHint is the command to suggest on this machine.
func installHint() string {
	for _, m := range packageManagers() {
		if _, err := exec.LookPath(m.program); err == nil {
			return m.hint
		}
	}
	if _, err := exec.LookPath("brew"); err == nil {
		return "brew install postgresql@17"
	}
	return "see https://www.postgresql.org/download/"
}

// install lets the system's package manager install PostgreSQL; only root can.
func install(ctx context.Context, opts ProvideOptions) (Installation, error) {
	if os.Geteuid() != 0 {
		return Installation{}, errors.New("not root, so nothing was installed")
	}
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	for _, m := range packageManagers() {
		if _, err := exec.LookPath(m.program); err != nil {
			continue
		}
		_, _ = fmt.Fprintf(opts.Progress, "PostgreSQL is missing: installing it with %s (once, about 50 MB) ...\n", m.program)
		if err := m.run(ctx); err != nil {
			return Installation{}, fmt.Errorf("%s failed: %w", m.program, err)
		}
		return FindPostgres(ctx, opts.PreferMajor)
	}
	return Installation{}, errors.New("no known package manager")
}

// installApt installs on Debian and Ubuntu. Their packages create a cluster and start it; we want the programs only, so
// that is switched off where the packages look, for the time of the installation.
func installApt(ctx context.Context) error {
	noCluster, err := placeFile("/etc/postgresql-common/createcluster.conf", "create_main_cluster = false\n", 0o644)
	if err != nil {
		return err
	}
	noStart, err := placeFile("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755)
	if err != nil {
		return errors.Join(err, noCluster())
	}
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	lock := []string{"-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"}
	err = command(ctx, env, "apt-get", append(lock, "update", "-qq")...)
	if err == nil {
		err = command(ctx, env, "apt-get", append(lock, "install", "-y", "-qq", "--no-install-recommends", "postgresql")...)
	}
	return errors.Join(err, noStart(), noCluster())
}

// placeFile creates a file unless it exists and returns how to take it away again.
func placeFile(path, content string, mode fs.FileMode) (remove func() error, err error) {
	nothing := func() error { return nil }
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // system directory
		return nothing, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if errors.Is(err, fs.ErrExist) {
		return nothing, nil
	}
	if err != nil {
		return nothing, err
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return nothing, err
	}
	return func() error {
		// A package may have replaced it by its own by now; then it is no longer ours to remove.
		if b, err := os.ReadFile(path); err == nil && string(b) == content {
			return os.Remove(path)
		}
		return nil
	}, nil
}

// command runs a program and keeps the end of what it says for the error.
func command(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // fixed programs
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, lastBytes(string(out), logTailBytes))
	}
	return nil
}

// lockProvide keeps processes of this machine from installing at the same time.
func lockProvide(ctx context.Context) (release func(), err error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("wiggle-postgres-%d.lock", os.Geteuid()))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return func() { unlock(f) }, nil
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("waiting for another process that installs PostgreSQL: %w", ctx.Err())
		case <-poll.C:
		}
	}
}
