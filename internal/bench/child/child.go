package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// childGrace is what a process may take to stop in order.
	childGrace   = 5 * time.Second
	logTailBytes = 2000
)

// Process is a process that ends with us.
type Process struct {
	// Name stands for it in figures, several may share one.
	Name string
	// Profiles is where it offers profiles, empty if it does not.
	Profiles string
	// Stdout is what it writes.
	Stdout io.Reader

	logFile string
	cmd     *exec.Cmd
	stdin   io.Closer
	done    chan struct{} // closed when it has ended
	err     error         // valid after done
}

// Start starts a command. What it logs goes to a file in dir, named after it and its number.
func Start(command []string, dir, name, number string, environ []string) (*Process, error) {
	c := &Process{Name: name, logFile: filepath.Join(dir, name+number+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(c.logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	c.cmd = exec.Command(command[0], command[1:]...) //nolint:gosec,noctx // this program; ended by Stop
	c.cmd.Env, c.cmd.Stderr = environ, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to pass on
	tie(c.cmd.SysProcAttr)
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if c.Stdout, err = c.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	started := make(chan error)
	go c.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// run starts the process and waits for its end. The parent death signal belongs to the thread that forked, so this one is
// kept until then.
func (c *Process) run(started chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	if err := c.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	// Not cmd.Wait: that would close the pipe under whoever reads it.
	state, err := c.cmd.Process.Wait()
	if err == nil && !state.Success() {
		err = errors.New(state.String())
	}
	c.err = err
	close(c.done)
}

// PID is its number.
func (c *Process) PID() int { return c.cmd.Process.Pid }

// Ended is the error of a process that has ended by itself; nil if it runs.
func (c *Process) Ended() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	text, _ := os.ReadFile(c.logFile)
	tail := strings.TrimSpace(string(text[max(0, len(text)-logTailBytes):]))
	return fmt.Errorf("%s has ended by itself: %w\n%s", c.Name, errOr(c.err, "exit status 0"), tail)
}

func errOr(err error, otherwise string) error {
	if err == nil {
		return errors.New(otherwise)
	}
	return err
}

// Stop ends the process, in order if it can. It returns when it is gone.
func (c *Process) Stop(ctx context.Context) {
	_ = c.stdin.Close()
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	grace := time.NewTimer(childGrace)
	defer grace.Stop()
	select {
	case <-c.done:
	case <-grace.C:
	case <-ctx.Done():
	}
	_ = c.cmd.Process.Kill()
	<-c.done
	if closer, ok := c.Stdout.(io.Closer); ok {
		_ = closer.Close()
	}
}
