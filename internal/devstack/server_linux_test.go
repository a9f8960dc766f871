package devstack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func startHelper(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// processesOf lists the processes that work on a directory, from their working directory.
func processesOf(dir string) (pids []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, dir) {
			pids = append(pids, filepath.Base(filepath.Dir(link)))
		}
	}
	return pids
}

// However and whenever the process that started the server dies, nothing of it stays, and the next start works.
func TestServerDiesWithUs(t *testing.T) {
	t.Parallel()
	for name, moment := range map[string]func(dir string) bool{
		"during initdb":   func(dir string) bool { return exists(filepath.Join(dataDir(dir)+".new", "global")) },
		"while it starts": func(dir string) bool { return exists(filepath.Join(dataDir(dir), "postmaster.pid")) },
		"while it runs":   func(dir string) bool { return exists(filepath.Join(dir, helperReady)) },
	} {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
			t.Run(name+"/"+sig.String(), func(t *testing.T) {
				t.Parallel()
				dir := testDir(t)
				cmd := startHelper(t, dir)
				waitFor(t, name, func() bool { return moment(dir) })
				if len(processesOf(dir)) == 0 {
					t.Error("there is nothing to leave")
				}
				if err := syscall.Kill(-cmd.Process.Pid, sig); err != nil { // to the group, as a terminal does
					t.Fatal(err)
				}
				_ = cmd.Wait()
				waitFor(t, "no process is left", func() bool { return len(processesOf(dir)) == 0 })
				startTestServer(t, ServerConfig{Dir: dir, Profile: Throwaway})
			})
		}
	}
}
