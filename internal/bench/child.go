package bench

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

// child is a process of this program that ends with us.
type child struct {
	// name stands for it in figures, several may share one.
	name    string
	logFile string
	// pprof is where it offers profiles, empty if it does not.
	pprof string

	cmd    *exec.Cmd
	stdin  io.Closer
	stdout io.Reader
	done   chan struct{} // closed when it has ended
	err    error         // valid after done
}

// startChild starts this program with other arguments. What it logs goes to a file in dir.
func startChild(o *Options, dir, name, number string, args, environ []string) (*child, error) {
	c := &child{name: name, logFile: filepath.Join(dir, name+number+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(c.logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	command := append(append([]string{}, o.Command...), args...)
	c.cmd = exec.Command(command[0], command[1:]...) //nolint:gosec,noctx // this program; ended by stop
	c.cmd.Env, c.cmd.Stderr = environ, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to pass on
	tie(c.cmd.SysProcAttr)
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if c.stdout, err = c.cmd.StdoutPipe(); err != nil {
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
func (c *child) run(started chan<- error) {
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

func (c *child) pid() int { return c.cmd.Process.Pid }

// ended is the error of a process that has ended by itself.
func (c *child) ended() error {
	text, _ := os.ReadFile(c.logFile)
	tail := strings.TrimSpace(string(text[max(0, len(text)-logTailBytes):]))
	return fmt.Errorf("%s has ended by itself: %w\n%s", c.name, errOr(c.err, "exit status 0"), tail)
}

func errOr(err error, otherwise string) error {
	if err == nil {
		return errors.New(otherwise)
	}
	return err
}

// stop ends the process, in order if it can. It returns when it is gone.
func (c *child) stop(ctx context.Context) {
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
	if closer, ok := c.stdout.(io.Closer); ok {
		_ = closer.Close()
	}
}
