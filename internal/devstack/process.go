package devstack

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// process is a child that ends with us.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // valid after done
}

// startTied starts cmd in its own process group, under the account, such that it receives deathSignal when this process
// dies in any way.
//
// On Linux the parent death signal belongs to the thread that forked, not to the process, so the goroutine that
// starts the child keeps its thread until the child has ended. It is set after the change of credentials, which would
// clear it (syscall.forkAndExecInChild does these in that order).
func startTied(cmd *exec.Cmd, as account, deathSignal syscall.Signal) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: as.credential()}
	setDeathSignal(cmd.SysProcAttr, deathSignal)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		stopWatching, err := watchdog(cmd.Process.Pid, deathSignal)
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			started <- err
			return
		}
		started <- nil
		p.err = cmd.Wait()
		stopWatching()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// signal sends sig; a process that has ended is fine.
func (p *process) signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// childEnv is our environment without PostgreSQL's own variables, which would change what the programs do, and with the C
// locale, so that messages can be recognised.
func childEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG")
	})
	return append(env, "LC_ALL=C")
}

// alive reports whether a process with this id exists.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
