package process_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/process"
)

// TestHealthcheck: a process is well when it says so itself; what it lacks is told (OPS-3, OPS-4).
func TestHealthcheck(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"missing":["shard 1"]}`))
		}
	}))
	defer server.Close()
	if err := process.Healthcheck(t.Context(), server.URL+"/readyz"); err != nil {
		t.Errorf("a process that is ready: %v", err)
	}
	for address, want := range map[string]string{
		server.URL + "/other":       `503 Service Unavailable: {"missing":["shard 1"]}`,
		"http://127.0.0.1:1/readyz": "refused",
		"127.0.0.1:8420":            "want a URL such as",
		"ftp://127.0.0.1/readyz":    "want a URL such as",
	} {
		if err := process.Healthcheck(t.Context(), address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

// TestMainArguments: a service takes no arguments; with healthcheck it does not become a service. It sets os.Args, so it
// runs beside no other test.
func TestMainArguments(t *testing.T) {
	ready := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer ready.Close()
	before := os.Args
	defer func() { os.Args = before }()
	for _, c := range []struct {
		args string
		code int
		runs bool
	}{
		{"router", 0, true},
		{"router healthcheck " + ready.URL, 0, false},
		{"router healthcheck http://127.0.0.1:1", 1, false},
		{"router healthcheck", 1, false},
		{"router --help", 1, false},
	} {
		ran := false
		os.Args = strings.Fields(c.args)
		code := process.Main("router", func(context.Context, []string) error { ran = true; return nil })
		if code != c.code || ran != c.runs {
			t.Errorf("%s: code %d, service ran: %v", c.args, code, ran)
		}
	}
}
