package devstack

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

func setDeathSignal(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// watchdog is not needed where the kernel does its work.
func watchdog(int, syscall.Signal) (stop func(), err error) { return func() {}, nil }

// processName is the program that a process runs, "" if unknown or if it has ended and only waits to be collected, which in
// a container without an init process it may do for ever.
func processName(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// "pid (name) state ...", where the name may itself hold parentheses
	text := string(stat)
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open || strings.HasPrefix(text[end:], ") Z") || strings.HasPrefix(text[end:], ") X") {
		return ""
	}
	return text[open+1 : end]
}
