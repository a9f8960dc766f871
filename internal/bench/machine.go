package bench

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Machine is what figures were taken on.
type Machine struct {
	CPU         string  `json:"cpu"`
	Cores       int     `json:"cores"`
	MemoryBytes int64   `json:"memory_bytes"`
	Kernel      string  `json:"kernel"`
	OS          string  `json:"os"`
	Go          string  `json:"go"`
	Postgres    string  `json:"postgres,omitempty"`
	Load        float64 `json:"load_before"` // one-minute average before anything was started: others' work
}

// thisMachine reads /proc; elsewhere much stays empty.
func thisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
	m.CPU = fieldOf("/proc/cpuinfo", "model name")
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	kib, _, _ := strings.Cut(fieldOf("/proc/meminfo", "MemTotal"), " ")
	if n, err := strconv.ParseInt(kib, 10, 64); err == nil {
		m.MemoryBytes = n << 10
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(text), " ")
		m.Load, _ = strconv.ParseFloat(first, 64)
	}
	return m
}

// fieldOf finds "name : value" in a file.
func fieldOf(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
