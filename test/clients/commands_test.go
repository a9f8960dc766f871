//go:build clients

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/test/pages"
)

const (
	// blockTime bounds one block; eventuallyTime how long one may take to answer as its page says, where the page says
	// that it comes later.
	blockTime      = 30 * time.Second
	eventuallyTime = 20 * time.Second
	eventuallyNote = "<!-- eventually -->"
)

// testCommands runs the blocks in sh of docs/clients.md in order, each in a shell of its own, all in one directory. A
// block in json or text that follows is what it prints. The first makes the key that the others show, and each that shows
// it is refused without.
func (s *stack) testCommands(t *testing.T) {
	blocks, err := pages.Read("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	dir, key := t.TempDir(), ""
	compared, refused := 0, 0
	for i, block := range blocks {
		if block.Language != "sh" {
			continue
		}
		if i+1 == len(blocks) || blocks[i+1].Language == "sh" {
			if out, err := s.sh(t, dir, block.Text, key); err != nil {
				t.Fatalf("docs/clients.md:%d: %v\n%s", block.Line, err, out)
			}
			if key == "" {
				key = readKey(t, dir, "key.txt")
			}
			continue
		}
		compared++
		s.compare(t, dir, block, blocks[i+1], key)
		if strings.Contains(block.Text, showKey) {
			refused++
			s.refuse(t, dir, block, key)
		}
	}
	if compared < 10 || refused < 10 {
		t.Errorf("only %d blocks are compared, %d were run without a key", compared, refused)
	}
}

// showKey is how the page's commands show the key.
const showKey = ` -H "Authorization: Bearer $WIGGLE_API_KEY"`

// refusedText is what programs print of a call without a key. buf has words of its own where reflection is refused.
var refusedText = regexp.MustCompile(`(?i)unauthenticated|you are not authenticated|failed to find service named`)

// readKey reads a key that a command has written.
func readKey(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	key := strings.TrimSuffix(string(text), "\n")
	if err != nil || !strings.HasPrefix(key, "wgk_") {
		t.Fatalf("no key in %s: %q, %v", name, key, err)
	}
	return key
}

// refuse runs a block without what shows the key, in a directory of its own.
func (s *stack) refuse(t *testing.T, dir string, block pages.Block, key string) {
	t.Helper()
	own := t.TempDir()
	if err := os.CopyFS(own, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	out, _ := s.sh(t, own, strings.ReplaceAll(block.Text, showKey, ""), key)
	if !refusedText.MatchString(out) {
		t.Errorf("docs/clients.md:%d: without a key it prints\n%s", block.Line, out)
	}
}

// compare runs a block until it prints what is wanted: once, or as long as the page lets it.
func (s *stack) compare(t *testing.T, dir string, block, want pages.Block, key string) {
	t.Helper()
	for began := time.Now(); ; {
		out, err := s.sh(t, dir, block.Text, key)
		if err == nil && matches(t, want, out) {
			return
		}
		if block.Before != eventuallyNote || time.Since(began) > eventuallyTime {
			t.Fatalf("docs/clients.md:%d: %v\nprinted\n%s\nwhich is not what the page says:\n%s", block.Line, err, out, want.Text)
		}
	}
}

// sh runs a block with a key against the relay in place of the port that the page names.
func (s *stack) sh(t *testing.T, dir, text, key string) (string, error) {
	t.Helper()
	tools, err := filepath.Abs("../../.build/bin")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), blockTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-eu", "-c", strings.ReplaceAll(text, "127.0.0.1:8420", s.relay.addr))
	cmd.Dir = dir
	cmd.Env = append(s.environment(key), "PATH="+s.bin+":"+tools+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// matches compares documents in JSON by their values and texts by their lines, where "..." stands for any. What differs
// from run to run counts by its form: instants, ids and fingerprints.
func matches(t *testing.T, want pages.Block, got string) bool {
	t.Helper()
	switch want.Language {
	case "json":
		w, err := documents(volatile(want.Text))
		if err != nil {
			t.Fatalf("docs/clients.md:%d is no JSON: %v", want.Line, err)
		}
		g, err := documents(volatile(got))
		return err == nil && reflect.DeepEqual(w, g)
	case "text":
		parts := strings.Split(regexp.QuoteMeta(volatile(want.Text)), regexp.QuoteMeta("...\n"))
		return regexp.MustCompile("^" + strings.Join(parts, `(?s:(.*\n)*)`) + "$").MatchString(volatile(got))
	default:
		t.Fatalf("docs/clients.md:%d: the output of a command is json or text, not %q", want.Line, want.Language)
		return false
	}
}

func documents(text string) (all []any, err error) {
	decoder := json.NewDecoder(bytes.NewBufferString(text))
	for {
		var one any
		switch err := decoder.Decode(&one); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, one)
	}
}

// volatile puts one text in place of all that have the same form.
func volatile(text string) string {
	for _, form := range []struct{ pattern, name string }{
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "INSTANT"},
		{`s[01]\.[0-9a-z]{26}`, "SHARD.ULID"},
		{`\b[0-9a-z]{26}\b`, "ULID"},
		{`\b[0-9a-f]{64}\b`, "FINGERPRINT"},
	} {
		text = regexp.MustCompile(form.pattern).ReplaceAllString(text, form.name)
	}
	return text
}
