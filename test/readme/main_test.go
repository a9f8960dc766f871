package readme

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/internal/cli"
	"github.com/wiggle-run/wiggle/internal/pgtest"
)

// asCommand names the command that the test binary is to be: how pages' commands run without anything being built or
// installed.
const asCommand = "README_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	switch os.Getenv(asCommand) {
	case "wiggle":
		os.Exit(cli.Main())
	case "curl":
		answer, err := curl(context.Background(), os.Args[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_, _ = os.Stdout.Write(answer)
	default:
		pgtest.Main(m)
	}
}

// commandsDir makes a directory for PATH, where the test binary is wiggle and curl.
func commandsDir(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"wiggle", "curl"} {
		// A program with the race detector waits a second before it ends, for races of its last moment; there are many here.
		script := fmt.Sprintf("#!/bin/sh\nGORACE=atexit_sleep_ms=0 %s=%s exec '%s' \"$@\"\n", asCommand, name, self)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	return dir
}

// curl makes the call that curl makes, of the arguments that pages use, and returns the answer if it is a good one.
func curl(ctx context.Context, args []string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "", http.NoBody)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; arg {
		case "-s":
		case "-H":
			i++
			name, value, _ := strings.Cut(args[i], ": ")
			req.Header.Set(name, value)
		case "-d":
			i++
			req.Body = io.NopCloser(strings.NewReader(args[i]))
		default:
			if req.URL, err = req.URL.Parse(arg); err != nil {
				return nil, err
			}
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %s: %s, %w", res.Status, body, err)
	}
	return body, nil
}
