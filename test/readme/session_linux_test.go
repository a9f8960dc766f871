package readme

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// blockTime bounds a block, on a machine that is busy with other tests.
const blockTime = time.Minute

// session is a shell at a terminal of its own. Blocks run in it one after the other and see each other's variables; one with a
// command that fails ends it.
type session struct {
	t   *testing.T
	dir string // where the commands run
	// control takes the names of files to run, terminal is what a person sees and types at.
	control, terminal *os.File
	shown             chan []byte
	blocks            int
}

// answer is what is typed when the terminal shows the question, and if it is a secret does not show what is typed.
type answer struct {
	question, keys string
	secret         bool
}

// ctrlC are the keys by which a person ends what runs.
const ctrlC = "\x03"

// newSession starts a shell, whose environment has nothing of Wiggle but what is given.
func newSession(t *testing.T, environ ...string) *session {
	t.Helper()
	s := &session{t: t, dir: t.TempDir(), shown: make(chan []byte)}
	var tty *os.File
	s.terminal, tty = openTerminal(t)
	names, control, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.control = control
	shell := exec.CommandContext(t.Context(), "sh", "-eu", "-c",
		`trap : INT; while read -r block <&3; do . "$block"; printf '\036'; done`)
	shell.Dir = s.dir
	shell.Env = append([]string{
		"PATH=" + commandsDir(t) + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LANG=C.UTF-8",
	}, environ...)
	shell.Stdin, shell.Stdout, shell.Stderr = tty, tty, tty
	shell.ExtraFiles = []*os.File{names}
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = names.Close(), tty.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		s.read()
	}()
	t.Cleanup(func() {
		_ = control.Close() // which ends the shell, if nothing has yet
		_ = shell.Wait()    // the blocks have told
		for range s.shown {
		}
		<-read
		_ = s.terminal.Close()
	})
	return s
}

// openTerminal makes a pseudo terminal, of which the program gets the second file.
func openTerminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(person.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return person, program
}

// read brings what the terminal shows, until the shell and all it has started are gone.
func (s *session) read() {
	defer close(s.shown)
	for {
		text := make([]byte, 4<<10)
		n, err := s.terminal.Read(text)
		if n > 0 {
			s.shown <- bytes.ReplaceAll(text[:n], []byte("\r"), nil)
		}
		if err != nil {
			if !errors.Is(err, syscall.EIO) && !errors.Is(err, io.EOF) {
				s.t.Errorf("the terminal: %v", err)
			}
			return
		}
	}
}

// run runs a block, answers what it asks, which has to be asked in this order, and returns what the terminal shows.
func (s *session) run(block string, answers ...answer) string {
	s.t.Helper()
	s.blocks++
	path := filepath.Join(s.t.TempDir(), fmt.Sprintf("block-%d", s.blocks))
	if err := os.WriteFile(path, []byte(block), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if _, err := fmt.Fprintln(s.control, path); err != nil {
		s.t.Fatal(err)
	}
	var shown strings.Builder
	seen := 0 // up to here when the last question was answered
	for limit := time.After(blockTime); ; {
		select {
		case text, ok := <-s.shown:
			if !ok {
				s.t.Fatalf("a command failed:\n%s\nwhich showed\n%s", block, &shown)
			}
			shown.Write(text)
		case <-limit:
			s.t.Fatalf("not done after %v:\n%s\nwhich showed\n%s", blockTime, block, &shown)
		}
		if text, ended := strings.CutSuffix(shown.String(), "\x1e"); ended {
			if len(answers) > 0 {
				s.t.Fatalf("nobody asked %q:\n%s\nshowed\n%s", answers[0].question, block, text)
			}
			return text
		}
		if len(answers) > 0 && strings.Contains(shown.String()[seen:], answers[0].question) {
			s.answer(answers[0])
			seen, answers = shown.Len(), answers[1:]
		}
	}
}

// answer types an answer. One that is secret waits for the program to have the terminal not show it, as whoever asks for one
// does a moment later.
func (s *session) answer(a answer) {
	s.t.Helper()
	for look, began := time.NewTicker(time.Millisecond), time.Now(); a.secret; <-look.C {
		now, err := unix.IoctlGetTermios(int(s.terminal.Fd()), unix.TCGETS)
		if err != nil {
			s.t.Fatal(err)
		}
		if now.Lflag&unix.ECHO == 0 {
			look.Stop()
			break
		}
		if time.Since(began) > blockTime {
			s.t.Fatalf("the terminal shows what is answered to %q", a.question)
		}
	}
	if _, err := s.terminal.WriteString(a.keys); err != nil {
		s.t.Fatal(err)
	}
}

// fails runs a command that is to fail, and returns its exit code with what the terminal shows.
func (s *session) fails(command string) (code, shown string) {
	s.t.Helper()
	shown = s.run(fmt.Sprintf("if %s; then echo exit code 0; else echo exit code $?; fi\n", command))
	shown = strings.TrimSuffix(shown, "\n")
	at := strings.LastIndex(shown, "exit code ")
	return shown[at+len("exit code "):], shown[:at]
}
