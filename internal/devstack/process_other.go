//go:build unix && !linux

package devstack

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

// watchdog starts a shell that waits on a pipe which only we hold open: when we die in any way the pipe closes, and it
// signals the process. Told that the process has ended, it just leaves.
func watchdog(pid int, sig syscall.Signal) (stop func(), err error) {
	script := `read line; [ "$line" = ended ] || kill -` + strconv.Itoa(int(sig)) + ` ` + strconv.Itoa(pid)
	cmd := exec.Command("/bin/sh", "-c", script) //nolint:noctx // lives as long as the process it watches
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_, _ = pipe.Write([]byte("ended\n"))
		_ = pipe.Close()
		_ = cmd.Wait()
	}, nil
}

// processName is the program that a process runs, "" if unknown.
func processName(pid int) string {
	out, err := exec.Command("ps", "-p", strconv.Itoa(pid), "-o", "comm=").Output() //nolint:noctx // short
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSpace(string(out)))
}
