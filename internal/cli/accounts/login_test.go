package accounts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
)

// A session from its begin to its end, by somebody at a terminal.
func TestSession(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	u := &user{t: t, url: f.URL, config: t.TempDir(), terminal: true, stdin: "alice\n", typed: []string{password}}
	var text strings.Builder
	text.WriteString(u.transcript("whoami"))
	text.WriteString(u.transcript("login"))
	if !strings.HasPrefix(f.agent, "wiggle/") || f.lastShown() != "" {
		t.Errorf("signs in as %q, and shows %q", f.agent, f.lastShown())
	}
	text.WriteString(u.transcript("whoami"))
	path := filepath.Join(u.config, "wiggle", "credentials.json")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v: %v", info, err)
	}
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	text.WriteString(u.transcript("users", "list"))
	text.WriteString(u.transcript("logout"))
	text.WriteString(u.transcript("logout"))
	if kept, err := os.ReadFile(path); err != nil || strings.Contains(string(kept), token) {
		t.Errorf("after the end the file has %s, %v", kept, err)
	}
	if strings.Contains(text.String(), "secret") {
		t.Error("a secret is printed")
	}
	golden(t, "session", text.String())
}

func TestSetUp(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	u := &user{t: t, url: f.URL, config: t.TempDir(), terminal: true, typed: []string{setUpToken, newPassword, newPassword}}
	golden(t, "setup", u.transcript("login", "--setup", "--name", "alice"))
	u = &user{t: t, url: f.URL, config: t.TempDir(), stdin: setUpToken + "\n" + newPassword + "\n"}
	if r := u.wiggle("login", "--setup", "--name", "alice", "--password-stdin", "-o", "json"); r.code != shell.ExitOK || strings.Contains(r.out, "secret") {
		t.Errorf("%+v", r)
	}
	if r := u.wiggle("whoami"); r.code != shell.ExitOK || f.lastShown() != token {
		t.Errorf("%+v, shows %q", r, f.lastShown())
	}
}

// What is typed twice has to be the same, and long enough.
func TestTypedTwice(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	for want, typed := range map[string][]string{
		"are not the same":      {setUpToken, newPassword, newPassword + "!"},
		"too short: it needs":   {setUpToken, "secret"},
		"setup token is empty":  {""},
		"nothing more is typed": {setUpToken},
	} {
		u := &user{t: t, url: f.URL, config: t.TempDir(), terminal: true, typed: typed}
		if r := u.wiggle("login", "--setup", "--name", "alice"); r.code != shell.ExitFailure || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v", want, r)
		}
	}
	if len(f.asked) != 0 {
		t.Errorf("the server was asked: %v", f.asked)
	}
}

// What a command shows: the flag goes before the environment, and that before the session.
func TestWhatIsShown(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	u := &user{t: t, url: f.URL, config: t.TempDir(), stdin: password}
	file := filepath.Join(u.config, "key")
	if err := os.WriteFile(file, []byte("wgk_file_secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := u.wiggle("login", "--name", "alice", "--password-stdin"); r.code != shell.ExitOK || r.err != "" {
		t.Fatalf("%+v", r)
	}
	for _, c := range []struct {
		environ, args []string
		want, hint    string
	}{
		{nil, nil, token, ""},
		{[]string{"WIGGLE_API_KEY=wgk_env_secret"}, nil, "wgk_env_secret", "the key of WIGGLE_API_KEY was revoked"},
		{[]string{"WIGGLE_API_KEY_FILE=" + file}, nil, "wgk_file_secret", "the key of WIGGLE_API_KEY_FILE was revoked"},
		{[]string{"WIGGLE_API_KEY=wgk_env_secret"}, []string{"--api-key-file", file}, "wgk_file_secret", "the key of --api-key-file was revoked"},
		{nil, []string{"--server", strings.Replace(f.URL, "127.0.0.1", "localhost", 1)}, "", "sign in with wiggle login, or set WIGGLE_API_KEY"},
	} {
		u.environ = c.environ
		r := u.wiggle(append([]string{"whoami"}, c.args...)...)
		if f.lastShown() != c.want || (r.code == shell.ExitUnauthenticated) != (c.hint != "") || !strings.Contains(r.err, c.hint) {
			t.Errorf("%v %v: shows %q: %+v", c.environ, c.args, f.lastShown(), r)
		}
		if strings.Contains(r.out+r.err, "secret") {
			t.Errorf("a secret is printed: %+v", r)
		}
	}
	u.environ = []string{"WIGGLE_API_KEY=" + apiKey}
	if r := u.wiggle("login", "--name", "alice", "--password-stdin"); !strings.Contains(r.err, "WIGGLE_API_KEY is set and goes before the session") {
		t.Errorf("%+v", r)
	}
	if r := u.wiggle("logout"); r.code != shell.ExitOK || f.lastShown() != token {
		t.Errorf("logs out with %q: %+v", f.lastShown(), r)
	}
	u.environ = []string{"WIGGLE_API_KEY=x", "WIGGLE_API_KEY_FILE=" + file}
	if r := u.wiggle("whoami"); r.code != shell.ExitUsage || !strings.Contains(r.err, "are both set") {
		t.Errorf("%+v", r)
	}
}

// A file of sessions that others may read is refused, before a password is asked for.
func TestOpenFileIsRefused(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	u := &user{t: t, url: f.URL, config: t.TempDir(), stdin: password}
	if r := u.wiggle("login", "--name", "alice", "--password-stdin"); r.code != shell.ExitOK {
		t.Fatalf("%+v", r)
	}
	calls := len(f.asked)
	if err := os.Chmod(filepath.Join(u.config, "wiggle", "credentials.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"whoami"}, {"login", "--name", "alice", "--password-stdin"}, {"logout"}, {"users", "list"}} {
		if r := u.wiggle(args...); r.code != shell.ExitFailure || !strings.Contains(r.err, "may be read by others (mode 0644)") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if len(f.asked) != calls {
		t.Error("the server was called")
	}
}

// A server that is away: the session is forgotten here, and it is said that it lasts there.
func TestLogoutWithoutTheServer(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	u := &user{t: t, url: f.URL, config: t.TempDir(), stdin: password}
	if r := u.wiggle("login", "--name", "alice", "--password-stdin"); r.code != shell.ExitOK {
		t.Fatalf("%+v", r)
	}
	text, err := os.ReadFile(filepath.Join(u.config, "wiggle", "credentials.json"))
	if err != nil {
		t.Fatal(err)
	}
	u.url = "http://127.0.0.1:1"
	moved := strings.ReplaceAll(string(text), f.URL, u.url)
	if err := os.WriteFile(filepath.Join(u.config, "wiggle", "credentials.json"), []byte(moved), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := u.wiggle("logout", "--timeout", "2s"); r.code != shell.ExitUnavailable || !strings.Contains(r.err, "wiggle sessions revoke s1") {
		t.Errorf("%+v", r)
	}
	if r := u.wiggle("logout"); r.out != "not signed in at http://127.0.0.1:1\n" {
		t.Errorf("%+v", r)
	}
}

// A password that goes over plain http to another host is warned of.
func TestPlainHTTPIsWarnedOf(t *testing.T) {
	t.Parallel()
	u := &user{t: t, url: "http://wiggle.invalid:8420", config: t.TempDir()}
	if r := u.wiggle("login", "--name", "alice"); !strings.Contains(r.err, "goes to wiggle.invalid:8420 over plain http") {
		t.Errorf("%+v", r)
	}
	u.url = "http://[::1]:1"
	if r := u.wiggle("login", "--name", "alice"); strings.Contains(r.err, "plain http") {
		t.Errorf("%+v", r)
	}
}

// What destroys asks, and does nothing without a yes.
func TestQuestions(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"users", "delete", "bob"},
		{"users", "update", "bob", "--disable"},
		{"users", "revoke-sessions", "bob"},
		{"roles", "delete", "r"},
		{"keys", "revoke", "ci"},
		{"keys", "rotate", "ci", "--overlap", "0"},
	} {
		f := newFakeAuth(t)
		u := &user{t: t, url: f.URL, environ: []string{"WIGGLE_API_KEY=" + apiKey}, terminal: true}
		for _, answer := range []string{"n\n", "\n", "yess\n"} {
			u.stdin = answer
			if r := u.wiggle(args...); r.code != shell.ExitFailure || !strings.Contains(r.err, "[y/N] wiggle: nothing was done") {
				t.Errorf("%v, %q: %+v", args, answer, r)
			}
		}
		if len(f.asked) != 0 {
			t.Errorf("%v: the server was asked", args)
		}
		for _, answer := range []string{"y\n", "Yes\n", "y"} {
			u.stdin = answer
			if r := u.wiggle(args...); r.code != shell.ExitOK {
				t.Errorf("%v, %q: %+v", args, answer, r)
			}
		}
	}
}
