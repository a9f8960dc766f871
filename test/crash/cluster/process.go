package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// Process is a child that may be killed and started again. Its output goes to a
// file, which all its lives share.
type Process struct {
	// Name is for people.
	Name string
	// URL is where a service answers; empty for what is none.
	URL string

	role, config, logFile string

	mu   sync.Mutex
	life *life // nil before the first start
	odd  []error
}

// life is one run of a process.
type life struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{} // closed when it has ended
	err   error         // valid after done
	asked bool          // its end was asked for; guarded by Process.mu
}

// NewProcess makes a process in one of the roles that [Main] was given; config is
// handed to it as JSON. It does not start it.
func (c *Cluster) NewProcess(name, role string, config any) (*Process, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("configure %s: %w", name, err)
	}
	p := &Process{Name: name, role: role, config: string(text), logFile: filepath.Join(c.Dir, name+".log")}
	c.processes = append(c.processes, p)
	return p, nil
}

// LogFile is where its output is.
func (p *Process) LogFile() string { return p.logFile }

// Start starts it. It does not wait until the process is of use.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self) //nolint:noctx,gosec // ended by Kill and Stop; it is this program
	cmd.Env = append(os.Environ(), envRole+"="+p.role, envConfig+"="+p.config, "GOTRACEBACK=all")
	race := "halt_on_error=1"
	if p.role == roleNATS {
		race = "exitcode=0" // what is not ours to mend is told in its log
	}
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0 "+race) // a stop does not wait for races of the second after it
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	tie(cmd.SysProcAttr)
	l := &life{cmd: cmd, done: make(chan struct{})}
	if l.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	started := make(chan error, 1)
	go p.run(l, started)
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life = l
	return nil
}

// run starts a life and waits for its end. The parent death signal belongs to the
// thread that forked, so this one is kept until then.
func (p *Process) run(l *life, started chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	if err := l.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	l.err = l.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !l.asked {
		p.odd = append(p.odd, fmt.Errorf("%s (process %d) ended although nobody asked it to: %w, see %s",
			p.Name, l.cmd.Process.Pid, errOr(l.err, "exit status 0"), p.logFile))
	}
	close(l.done)
}

func errOr(err error, otherwise string) error {
	if err == nil {
		return errors.New(otherwise)
	}
	return err
}

// Odd tells about lives that ended by themselves.
func (p *Process) Odd() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.odd
}

// ask marks the present life as one whose end is wanted; nil if there is none.
func (p *Process) ask() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil {
		p.life.asked = true
	}
	return p.life
}

// Kill ends it as nothing can prevent (SIGKILL), and waits until it is gone. Its
// name, with the number of the process, is for the log.
func (p *Process) Kill() {
	l := p.ask()
	if l == nil {
		return
	}
	_ = l.cmd.Process.Kill() // it may have ended
	<-l.done
}

// Stop asks it to end (SIGTERM) and waits; the error is how it ended.
func (p *Process) Stop(ctx context.Context) error {
	l := p.ask()
	if l == nil {
		return nil
	}
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.Name, err)
	}
	select {
	case <-l.done:
		if l.err != nil {
			return fmt.Errorf("%s: %w", p.Name, l.err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s does not stop: %w", p.Name, ctx.Err())
	}
}
