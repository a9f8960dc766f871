package procfs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// clockTicks is in what /proc tells times, everywhere (USER_HZ).
const clockTicks = 100

// times is what /proc/PID/stat tells of a process.
type times struct {
	parent int
	// own is user and system time; children that of its children that have ended.
	own, children float64
}

// parseStat reads a line of /proc/PID/stat. The name in it may hold anything.
func parseStat(text string) (times, bool) {
	end := strings.LastIndexByte(text, ')')
	if end < 0 {
		return times{}, false
	}
	fields := strings.Fields(text[end+1:]) // from the third: state, ppid, ...
	const parent, userTime, fewest = 1, 11, 15
	if len(fields) < fewest {
		return times{}, false
	}
	n := make([]float64, fewest)
	for i := parent; i < fewest; i++ {
		v, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return times{}, false
		}
		n[i] = float64(v)
	}
	return times{
		parent:   int(n[parent]),
		own:      (n[userTime] + n[userTime+1]) / clockTicks,
		children: (n[userTime+2] + n[userTime+3]) / clockTicks,
	}, true
}

func statOf(pid string) (times, bool) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return times{}, false
	}
	return parseStat(string(text))
}

// CPUSeconds is what a process has used so far, 0 where there is no /proc.
func CPUSeconds(pid int) float64 {
	t, _ := statOf(strconv.Itoa(pid))
	return t.own
}

// CPUSecondsOfFamily is what a process and its children have used, those included that have ended.
func CPUSecondsOfFamily(pid int) float64 {
	t, ok := statOf(strconv.Itoa(pid))
	if !ok {
		return 0
	}
	sum := t.own + t.children
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return sum
	}
	for _, e := range entries {
		if name := e.Name(); name[0] >= '1' && name[0] <= '9' {
			if child, ok := statOf(name); ok && child.parent == pid {
				sum += child.own + child.children
			}
		}
	}
	return sum
}
