package credentials_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/cli/credentials"
)

var now = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

func put(t *testing.T, s *credentials.Store, server, token string, expires time.Time) {
	t.Helper()
	if err := s.Put(server, credentials.Session{Name: "alice", ID: "s1", Token: token, ExpiresAt: expires}, now); err != nil {
		t.Fatal(err)
	}
}

func token(t *testing.T, s *credentials.Store, server string) string {
	t.Helper()
	session, ok, err := s.Find(server)
	if err != nil || ok != (session.Token != "") {
		t.Fatalf("%v, %t: %v", session, ok, err)
	}
	return session.Token
}

func TestSessionsAreKeptByServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := credentials.NewStore(dir)
	if token(t, s, "http://a") != "" {
		t.Error("found a session before there was one")
	}
	put(t, s, "http://a:8420/", "one", now.Add(time.Hour))
	put(t, s, "https://a:8420", "two", time.Time{})
	put(t, s, "http://ended", "three", now.Add(-time.Second))
	put(t, s, "http://a:8420", "four", now.Add(time.Hour))
	s = credentials.NewStore(dir)
	for server, want := range map[string]string{
		"http://a:8420": "four", "HTTP://A:8420/": "four", "https://a:8420": "two", "http://ended": "", "http://b": "",
	} {
		if got := token(t, s, server); got != want {
			t.Errorf("%s: %q, want %q", server, got, want)
		}
	}
	if err := s.Remove("http://a:8420"); err != nil || token(t, s, "http://a:8420") != "" || token(t, s, "https://a:8420") != "two" {
		t.Errorf("after it was removed: %v", err)
	}
	for path, want := range map[string]os.FileMode{s.Path(): 0o600, filepath.Dir(s.Path()): 0o700 | os.ModeDir} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(s.Path())); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A file that others may read is refused, for reading and for writing.
func TestOpenFileIsRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range []os.FileMode{0o640, 0o604, 0o644, 0o620} {
		s := credentials.NewStore(t.TempDir())
		put(t, s, "http://a", "secret", time.Time{})
		if err := os.Chmod(s.Path(), mode); err != nil {
			t.Fatal(err)
		}
		_, _, err := s.Find("http://a")
		for _, err := range []error{err, s.Put("http://b", credentials.Session{}, now), s.Remove("http://a")} {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("may be read by others (mode %#o)", mode)) {
				t.Errorf("%v: %v", mode, err)
			}
		}
	}
}

// Neither a file that is broken nor a session that is printed shows a token.
func TestTokensAreNotPrinted(t *testing.T) {
	t.Parallel()
	s := credentials.NewStore(t.TempDir())
	put(t, s, "http://a", "secret", time.Time{})
	session, _, err := s.Find("http://a")
	if text := fmt.Sprintf("%v %+v %#v", session, session, session); err != nil || strings.Contains(text, "secret") {
		t.Errorf("%s, %v", text, err)
	}
	if err := os.WriteFile(s.Path(), []byte(`{"sessions": {"secret"`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Find("http://a"); err == nil || !strings.Contains(err.Error(), "holds no sessions") || strings.Contains(err.Error(), "secret") {
		t.Errorf("a broken file: %v", err)
	}
}

func TestNoPlace(t *testing.T) {
	t.Parallel()
	s := credentials.NewStore("")
	if got := token(t, s, "http://a"); got != "" {
		t.Errorf("found %q", got)
	}
	if err := s.Put("http://a", credentials.Session{}, now); err == nil || !strings.Contains(err.Error(), "set HOME") {
		t.Errorf("got %v", err)
	}
}
