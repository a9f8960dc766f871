package readme

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/internal/cli"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/test/commands"
)

func TestMain(m *testing.M) {
	commands.Main(map[string]func() int{"wiggle": cli.Main, "curl": curlMain})
	pgtest.Main(m)
}

// commandsDir makes a directory for PATH, where the test binary is wiggle and curl.
func commandsDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := commands.Install(dir, "wiggle", "curl"); err != nil {
		t.Fatal(err)
	}
	return dir
}

func curlMain() int {
	answer, err := curl(context.Background(), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = os.Stdout.Write(answer)
	return 0
}

// curl makes the call that curl makes, of the arguments that pages use, and returns the answer if it is a good one.
func curl(ctx context.Context, args []string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "", http.NoBody)
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
			req.Method = http.MethodPost
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
