package readme

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/testcluster"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
	"github.com/wiggle-run/wiggle/test/pages"
)

// blocks are the README's.
func blocks(t *testing.T) []pages.Block {
	t.Helper()
	found, err := pages.Read("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestProgram: the README's program is examples/greeting, which the build compiles.
func TestProgram(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../examples/greeting/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(source), "package main\n")
	if got := pages.In(blocks(t), "go")[0]; got != "package main\n"+program {
		t.Error("the README's first program is not examples/greeting/main.go from its package clause on")
	}
	if n := strings.Count(program, "\n"); n > 55 {
		t.Errorf("the first workflow has %d lines, which is more than a screen", n)
	}
}

// serve runs a cluster in memory whose router listens on a port.
func serve(t *testing.T) string {
	t.Helper()
	cluster, err := testcluster.Start(testcluster.Config{Shards: 2, RouterAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := cluster.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := wiggle.Dial(cluster.URL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Register(ctx, wiggle.Define("greeting", func(f *wiggle.Flow) { f.Task("compose") })); err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(cluster.URL(), "http://")
}

// commandsAt returns the README's commands that begin with a word, sent to the given address.
func commandsAt(t *testing.T, word, address string) []string {
	t.Helper()
	found := pages.Commands(blocks(t), word)
	if len(found) == 0 {
		t.Fatalf("the README has no %s", word)
	}
	for i := range found {
		found[i] = strings.ReplaceAll(found[i], "127.0.0.1:8420", address)
	}
	return found
}

// TestCurl: the README's curl commands, read as curl reads them.
func TestCurl(t *testing.T) {
	t.Parallel()
	address := serve(t)
	var answers []map[string]any
	for _, command := range commandsAt(t, "curl", address) {
		body, err := curl(t.Context(), pages.Words(command)[1:])
		if err != nil {
			t.Fatalf("%s\n%v", command, err)
		}
		var answer map[string]any
		if err := json.Unmarshal(body, &answer); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, answer)
	}
	tasks, _ := answers[1]["tasks"].([]any)
	if len(tasks) != 1 {
		t.Fatalf("the poll brought %v", answers[1])
	}
	task, _ := tasks[0].(map[string]any)
	payload, _ := task["context"].(map[string]any)
	if input, _ := payload["json"].(map[string]any); task["instanceId"] != answers[0]["instanceId"] || input["Name"] != "Ada" {
		t.Fatalf("the poll brought %v, the start %v", task, answers[0])
	}
}

// TestBufCurl runs the README's buf curl commands with the buf that BUF names; `make
// readme` builds it and sets BUF.
func TestBufCurl(t *testing.T) {
	t.Parallel()
	buf := os.Getenv("BUF")
	address := serve(t)
	for _, command := range commandsAt(t, "buf curl", address) {
		if buf == "" {
			continue // the command is there and well formed; its run is make readme's
		}
		words := pages.Words(command)
		cmd := exec.CommandContext(t.Context(), buf, words[1:]...)
		cmd.Dir = t.TempDir()
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil || !json.Valid(stdout.Bytes()) {
			t.Fatalf("%s\n%v\n%s%s", command, err, stdout.String(), stderr.String())
		}
	}
}
