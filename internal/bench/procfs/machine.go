package procfs

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

// ThisMachine reads /proc; elsewhere much stays empty.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
	m.CPU = Field("/proc/cpuinfo", "model name")
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	kib, _, _ := strings.Cut(Field("/proc/meminfo", "MemTotal"), " ")
	if n, err := strconv.ParseInt(kib, 10, 64); err == nil {
		m.MemoryBytes = n << 10
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(text), " ")
		m.Load, _ = strconv.ParseFloat(first, 64)
	}
	return m
}
