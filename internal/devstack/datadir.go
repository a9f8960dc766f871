package devstack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// maxSocketPath is what sockaddr_un takes on the tightest system we run on (macOS: 104, Linux: 108 with the final 0).
	maxSocketPath = 103
	// leaveTime is how long the server of a killed run may take to leave its data directory.
	leaveTime = 3 * time.Second
	// maxLogBytes is the size beyond which the log starts anew with the server.
	maxLogBytes = 16 << 20
)

// InUseError says that a live server works on the data directory.
type InUseError struct {
	// Dir is ServerConfig.Dir, PID the postmaster's process id.
	Dir string
	PID int
}

// Error says what to do about it.
func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("data directory %s is in use by another process that is starting PostgreSQL", e.Dir)
	}
	return fmt.Sprintf("data directory %s is in use by PostgreSQL process %d: stop what runs it, or choose another directory",
		e.Dir, e.PID)
}

func dataDir(dir string) string { return filepath.Join(dir, "data") }

// Reset deletes the data of a server that is not running. Only what [StartServer] puts into dir is deleted.
func Reset(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	lock, err := lockDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock(lock)
	if err := ensureUnused(context.Background(), dir); err != nil {
		return err
	}
	var errs []error
	paths := []string{dataDir(dir), dataDir(dir) + ".new", filepath.Join(dir, "postgres.log")}
	if as, err := serverAccount(); err == nil {
		paths = append(paths, socketDirOf(dir, as))
	}
	for _, path := range paths {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// lockDir takes dir for this process, so that two starts do not work on it at once, until [unlock].
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		_ = f.Close()
		pf, _ := readPidFile(dataDir(dir)) // 0 while the other is still starting
		return nil, &InUseError{Dir: dir, PID: pf.pid}
	}
	return f, nil
}

// unlock gives a lock back. Closing alone is not enough: a child that another goroutine is just forking has the file open
// until it runs its program.
func unlock(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	_ = f.Close()
}

// prepareDir makes the directory ready to start on: reachable, initialised, of the right version, used by nobody.
func (s *Server) prepareDir(ctx context.Context) error {
	dir, data := s.cfg.Dir, dataDir(s.cfg.Dir)
	if err := s.as.own(dir); err != nil {
		return err
	}
	if err := s.as.canReach(data); err != nil {
		return err
	}
	major := dataMajor(data)
	if major == 0 {
		return s.create(ctx)
	}
	if major != s.cfg.Installation.Major {
		return fmt.Errorf("data in %s was written by PostgreSQL %d, and %s has %d: set %s to the bin directory of %d, "+
			"or delete the data (--reset)", dir, major, s.cfg.Installation.BinDir, s.cfg.Installation.Major, EnvPostgresBin, major)
	}
	return ensureUnused(ctx, dir)
}

// create makes the data directory beside its place and then moves it there, so that it is never half made.
func (s *Server) create(ctx context.Context) error {
	data := dataDir(s.cfg.Dir)
	fresh := data + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	if err := s.as.own(fresh); err != nil {
		return err
	}
	program, args := s.initdb(fresh)
	if s.primary != nil {
		program, args = s.baseBackup(fresh)
	}
	if err := s.run(ctx, program, args); err != nil {
		return err
	}
	return os.Rename(fresh, data)
}

func (s *Server) initdb(data string) (program string, args []string) {
	args = []string{
		"--pgdata", data, "--username", Superuser, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-instructions",
	}
	if s.cfg.Profile == Throwaway {
		args = append(args, "--no-sync")
	}
	return "initdb", args
}

// run runs one of PostgreSQL's programs to its end.
func (s *Server) run(ctx context.Context, program string, args []string) error {
	var out strings.Builder
	cmd := exec.Command(s.cfg.Installation.program(program), args...) //nolint:noctx,gosec // killed below; our own program
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.cfg.Dir, childEnv(), &out, &out
	proc, err := startTied(cmd, s.as, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	select {
	case <-proc.done:
	case <-ctx.Done():
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-proc.done
		return fmt.Errorf("%s: %w", program, context.Cause(ctx))
	}
	if proc.err != nil {
		return fmt.Errorf("%s: %w\n%s", program, proc.err, lastBytes(out.String(), logTailBytes))
	}
	return nil
}

// dataMajor is the version of the data directory, 0 if there is none.
func dataMajor(data string) int {
	b, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if err != nil {
		return 0
	}
	major, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return major
}

// pidFile is what postmaster.pid tells: its first line is the process id, its eighth the state.
type pidFile struct {
	pid   int
	ready bool
}

func readPidFile(data string) (pidFile, error) {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil {
		return pidFile{}, fmt.Errorf("postmaster.pid: %w", err)
	}
	return pidFile{pid: pid, ready: len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready"}, nil
}

// ensureUnused clears away what a killed run left. A server that is just leaving is waited for; one that stays is an
// [InUseError]. PostgreSQL itself would refuse to start also when another program now has the old process id.
func ensureUnused(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	poll := time.NewTicker(readyPollTime)
	defer poll.Stop()
	for {
		pf, err := readPidFile(dataDir(dir))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !alive(pf.pid) || !strings.HasPrefix(processName(pf.pid), "postgres") {
			return removeStale(dir)
		}
		select {
		case <-ctx.Done():
			return &InUseError{Dir: dir, PID: pf.pid}
		case <-poll.C:
		}
	}
}

func removeStale(dir string) error {
	err := os.Remove(filepath.Join(dataDir(dir), "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// makeSocketDir creates the directory of the server's socket: short, because the path of a socket may have only about a
// hundred bytes, and the same for each start, so that killed runs do not pile them up.
func makeSocketDir(dir string, as account) (string, error) {
	path := socketDirOf(dir, as)
	// In a directory that others can write to, what is already there may be theirs.
	if err := os.RemoveAll(path); err != nil {
		return "", err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	if err := as.own(path); err != nil {
		return "", err
	}
	return path, nil
}

func socketDirOf(dir string, as account) string {
	sum := sha256.Sum256([]byte(dir))
	name := fmt.Sprintf("wiggle-%d-%s", os.Geteuid(), hex.EncodeToString(sum[:6]))
	path := filepath.Join(os.TempDir(), name)
	if len(path)+len("/.s.PGSQL.65535") > maxSocketPath || as.canReach(path) != nil {
		path = filepath.Join("/tmp", name)
	}
	return path
}

// openLog opens the server's log for appending and returns where this run begins in it.
func openLog(path string) (*os.File, int64, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogBytes {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644) //nolint:gosec // a log to be read
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func logTail(path string, offset int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) < offset {
		return ""
	}
	return lastBytes(string(b[offset:]), logTailBytes)
}

func lastBytes(s string, n int) string { return strings.TrimSpace(s[max(0, len(s)-n):]) }

// hasLibrary reports whether the installation has a loadable module.
func hasLibrary(inst Installation, name string) bool {
	dirs := []string{
		filepath.Join(inst.BinDir, "..", "lib"), filepath.Join(inst.BinDir, "..", "lib", "postgresql"),
		"/usr/lib/postgresql", "/usr/lib64/pgsql",
	}
	for _, dir := range dirs {
		for _, ext := range []string{".so", ".dylib"} {
			if _, err := os.Stat(filepath.Join(dir, name+ext)); err == nil {
				return true
			}
		}
	}
	return false
}
