package procfs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ResidentBytes is how much memory a process holds, without what it shares with others; 0 where there is no /proc.
func ResidentBytes(pid int) int64 {
	file := filepath.Join("/proc", strconv.Itoa(pid), "status")
	kib, _, _ := strings.Cut(Field(file, "RssAnon"), " ")
	n, err := strconv.ParseInt(kib, 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// ResidentBytesOfFamily is that of a process and its children.
func ResidentBytesOfFamily(pid int) int64 {
	sum := ResidentBytes(pid)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return sum
	}
	for _, e := range entries {
		if name := e.Name(); name[0] >= '1' && name[0] <= '9' {
			if child, ok := statOf(name); ok && child.parent == pid {
				n, _ := strconv.Atoi(name) // it was read under this name
				sum += ResidentBytes(n)
			}
		}
	}
	return sum
}

// Field finds "name : value" in a file.
func Field(path, name string) string {
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
