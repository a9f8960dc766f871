package bench

import (
	"os/exec"
	"runtime/debug"
	"strings"
)

// commitOf is the commit that this program was built from, with "+" if there was more than that; of the working directory
// if the program does not know. Empty if neither does.
func commitOf() string {
	var revision, modified string
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value
			case "vcs.modified":
				modified = s.Value
			}
		}
	}
	if revision == "" {
		out, err := exec.Command("git", "rev-parse", "HEAD").Output() //nolint:noctx // local, and short
		if err != nil {
			return ""
		}
		revision = strings.TrimSpace(string(out))
		status, err := exec.Command("git", "status", "--porcelain").Output() //nolint:noctx // local, and short
		if err == nil && len(status) > 0 {
			modified = "true"
		}
	}
	const short = 12
	revision = revision[:min(short, len(revision))]
	if modified == "true" {
		revision += "+"
	}
	return revision
}
