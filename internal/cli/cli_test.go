package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
)

// update writes what is printed to the golden files, to be read through before they are kept.
var update = flag.Bool("update", false, "write the golden files and the documents")

// result is how a command ended.
type result struct {
	code     int
	out, err string
}

// now is the time in tests.
var now = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

func run(t *testing.T, environ []string, stdin string, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	p := &Program{
		In: strings.NewReader(stdin), Out: &out, Err: &err, Environ: append([]string{"LANG=C.UTF-8"}, environ...),
		Location: time.UTC, Now: func() time.Time { return now },
	}
	code := Run(t.Context(), p, args)
	return result{code, out.String(), err.String()}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// transcript is a command with all that came of it.
func transcript(r result, args ...string) string {
	var text strings.Builder
	text.WriteString("$ wiggle " + strings.Join(args, " ") + "\n" + r.out)
	if r.err != "" {
		text.WriteString("--- standard error\n" + r.err)
	}
	text.WriteString("--- exit code " + string(rune('0'+r.code)) + "\n")
	return text.String()
}

func TestOutputs(t *testing.T) {
	t.Parallel()
	server := newFakeServer(t)
	environ := []string{"WIGGLE_SERVER=" + server.URL}
	const done, failed, running = "wfi.s0.01k6j00000000000000000000a", "wfi.s1.01k6j00000000000000000000b", "wfi.s1.01k6j00000000000000000000c"
	for name, args := range map[string][]string{
		"help":                {"--help"},
		"help-dev":            {"dev", "--help"},
		"help-exit-codes":     {"help", "exit-codes"},
		"start":               {"start", "order", "--input", `{"n":12345678901234567890}`},
		"start-json":          {"start", "order", "-o", "json"},
		"start-wait":          {"start", "order", "--wait"},
		"start-wait-json":     {"start", "order", "--wait", "-o", "json"},
		"start-wait-failed":   {"start", "fails", "--wait"},
		"start-bad-json":      {"start", "order", "--input", "{n:1}"},
		"start-bad-priority":  {"start", "order", "--priority", "10"},
		"start-unknown":       {"start", "nothing"},
		"start-unknown-json":  {"start", "nothing", "-o", "json"},
		"start-over-limit":    {"start", "large", "-o", "json"},
		"get":                 {"get", done},
		"get-json":            {"get", done, "-o", "json"},
		"get-history":         {"get", done, "--history"},
		"get-history-json":    {"get", done, "--history", "-o", "json"},
		"get-failed":          {"get", failed},
		"get-running":         {"get", running},
		"get-missing":         {"get", "wfi.s0.01k6j0000000000000000000zz"},
		"get-nothing":         {"get"},
		"list":                {"list"},
		"list-json":           {"list", "-o", "json"},
		"list-limit":          {"list", "--limit", "2"},
		"list-filtered":       {"list", "--state", "failed", "--since", "1h", "--until", "2026-10-03", "--workflow", "order"},
		"list-bad-state":      {"list", "--state", "done"},
		"list-bad-time":       {"list", "--since", "yesterday"},
		"list-partial":        {"list", "--partial"},
		"list-partial-json":   {"list", "--partial", "-o", "json"},
		"count":               {"count"},
		"count-json":          {"count", "-o", "json"},
		"shards":              {"shards"},
		"shards-json":         {"shards", "-o", "json"},
		"cancel":              {"cancel", running, "--reason", "the customer called"},
		"cancel-json":         {"cancel", running, "-o", "json"},
		"cancel-ended":        {"cancel", done},
		"workflows":           {"workflows"},
		"workflows-json":      {"workflows", "-o", "json"},
		"workflows-name":      {"workflows", "order"},
		"workflows-name-yaml": {"workflows", "order", "-o", "yaml"},
		"workflows-name-json": {"workflows", "order", "-o", "json"},
		"register":            {"register", "-f", "testdata/order.yaml"},
		"register-json":       {"register", "-f", "testdata/order.yaml", "-o", "json"},
		"register-invalid":    {"register", "-f", "testdata/broken.yaml"},
		"register-conflict":   {"register", "-f", "testdata/conflict.yaml", "-o", "json"},
		"register-syntax":     {"register", "-f", "testdata/syntax.yaml"},
		"register-no-file":    {"register"},
		"events-tail":         {"events", "tail", "--limit", "3"},
		"events-tail-json":    {"events", "tail", "--limit", "3", "-o", "json"},
		"events-tail-partial": {"events", "tail", "--limit", "3", "--partial", "--from", "earliest", "--type", "order.*"},
		"events-consumer":     {"events", "tail", "--consumer", "billing", "--limit", "2"},
		"events-bad-cursor":   {"events", "tail", "--from", "made-up"},
		"events-bad-limit":    {"events", "tail", "--limit", "-1"},
		"events-consumers":    {"events", "consumers"},
		"events-cons-json":    {"events", "consumers", "-o", "json"},
		"events-delete":       {"events", "consumers", "delete", "billing"},
		"events-delete-json":  {"events", "consumers", "delete", "billing", "-o", "json"},
		"events-delete-none":  {"events", "consumers", "delete"},
		"events-bad-verb":     {"events", "consumers", "remove", "billing"},
		"help-events-tail":    {"events", "tail", "--help"},
		"ids":                 {"ids", "parse", done, "tok.s7.01k6j00000000000000000000d", "wfi_old", "wfi.s-1.x"},
		"ids-json":            {"ids", "parse", done, "wfi_old", "nonsense", "-o", "json"},
		"unknown-command":     {"strat"},
		"topology-both":       {"topology", "check", "x.json", "--online", "--facts", "y.json"},
		"unknown-flag":        {"list", "--stat", "x", "-o", "json"},
		"unknown-serve":       {"serve", "rooter"},
		"bad-output":          {"list", "-o", "xml"},
		"bad-server":          {"list", "--server", "localhost"},
		"dev-bad-shards":      {"dev", "--shards", "9"},
		"dev-bad-replicas":    {"dev", "--replicas", "3"},
		"dev-bad-log":         {"dev", "--log", "loud"},
		"serve-no-database":   {"serve", "all"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, name+".txt", strings.ReplaceAll(transcript(run(t, environ, "", args...), args...), server.URL, "http://SERVER"))
		})
	}
}

// TestJSONIsOneDocument checks what scripts rely on.
func TestJSONIsOneDocument(t *testing.T) {
	t.Parallel()
	server := newFakeServer(t)
	for _, args := range [][]string{
		{"list"},
		{"count"},
		{"workflows"},
		{"shards"},
		{"version"},
		{"settings"},
		{"get", "wfi.s0.01k6j00000000000000000000a"},
		{"start", "order", "--wait"},
		{"ids", "parse", "x"},
		{"get", "x"},
		{"nonsense"},
		{"start"},
	} {
		r := run(t, nil, "", append(args, "-o", "json", "--server", server.URL)...)
		for name, text := range map[string]string{"output": r.out, "error": r.err} {
			if text != "" && !json.Valid([]byte(text)) {
				t.Errorf("%v: %s is %q", args, name, text)
			}
		}
		if r.out == "" && r.err == "" {
			t.Errorf("%v printed nothing", args)
		}
	}
}

func TestServerAway(t *testing.T) {
	t.Parallel()
	r := run(t, nil, "", "list", "--server", "http://127.0.0.1:1", "--timeout", "2s")
	if r.code != shell.ExitUnavailable || !strings.Contains(r.err, "is a router running at http://127.0.0.1:1? start one with wiggle dev") {
		t.Errorf("got %d: %s", r.code, r.err)
	}
}

func TestInputs(t *testing.T) {
	t.Parallel()
	server := newFakeServer(t)
	file := filepath.Join(t.TempDir(), "in.json")
	if err := os.WriteFile(file, []byte(`{"from":"file"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for input, want := range map[string]string{
		"@" + file: `{"from":"file"}`, "-": `{"from":"stdin"}`, `[1,2]`: `[1,2]`, "": "null",
	} {
		run(t, nil, `{"from":"stdin"}`, "start", "echo", "--server", server.URL, "--input", input, "--id", "01k6j0000000000000000000zz")
		if got := server.input("01k6j0000000000000000000zz"); got != want {
			t.Errorf("%q sends %s, want %s", input, got, want)
		}
	}
	if r := run(t, nil, "", "start", "echo", "--server", server.URL, "--input", "@/nowhere"); r.code != shell.ExitFailure || !strings.Contains(r.err, "/nowhere") {
		t.Errorf("a missing file: %+v", r)
	}
}

// TestEveryCommandTeaches holds every command to a help that says something.
func TestEveryCommandTeaches(t *testing.T) {
	t.Parallel()
	root := newRoot(&Program{})
	for _, c := range commands(root) {
		if c.Short == "" || (c.HasAvailableLocalFlags() && c.Runnable() && c.Example == "" && c.Name() != "settings") {
			t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
		}
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	p := &Program{Err: &bytes.Buffer{}, Out: &bytes.Buffer{}, Location: time.UTC, Now: time.Now}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := Run(ctx, p, []string{"list", "--server", "http://127.0.0.1:1"}); code == shell.ExitOK {
		t.Error("a command that was interrupted has succeeded")
	}
}
