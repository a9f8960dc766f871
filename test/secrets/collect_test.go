package secrets

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/wiggle-run/wiggle/test/ports"
)

const (
	// refusedExports is how many exports the collector refuses, so that services tell of it.
	refusedExports = 3
	// lookEvery is how often the list of processes and the pages of services are read.
	lookEvery = 50 * time.Millisecond
	// pagesEvery is after how many looks at the processes the pages are read.
	pagesEvery = 20
)

// collect starts a collector of OTLP over HTTP, which refuses at first, and returns its address. Texts stand in protobuf as they
// are, so nothing needs to be decoded.
func collect(t *testing.T, s *Search) string {
	t.Helper()
	var exports atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the sender has gone
		}
		if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
			t.Errorf("spans come as %s, and nothing would be found in them", encoding)
		}
		kind := Traces
		if strings.HasSuffix(r.URL.Path, "/metrics") {
			kind = Metrics
		}
		s.Add(kind, "exported", string(body))
		if exports.Add(1) <= refusedExports {
			http.Error(w, "not yet", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// watch reads the list of processes and the pages of services again and again, until the test ends.
func watch(t *testing.T, s *Search, services map[string]string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		look := time.NewTicker(lookEvery)
		defer look.Stop()
		for n := 0; ; n++ {
			listProcesses(s)
			if n%pagesEvery == 0 {
				for name, address := range services {
					for _, page := range []string{"/metrics", "/readyz", "/readyz/shards", "/healthz"} {
						readPage(ctx, s, name+page, "http://"+address+page)
					}
				}
			}
			select {
			case <-look.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
}

// listProcesses notes the arguments, or the title, of every process of the machine.
func listProcesses(s *Search) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil {
			s.Add(Processes, "", strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " ")))
		}
	}
}

func readPage(ctx context.Context, s *Search, name, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return // it is away for now
	}
	defer func() { _ = res.Body.Close() }()
	if text, err := io.ReadAll(res.Body); err == nil {
		for line := range strings.Lines(string(text)) {
			series, _, _ := strings.Cut(line, "} ") // the figure behind it is none of a secret
			s.Add(Metrics, name, series)
		}
	}
}

// hear notes every message that goes over NATS: those of the stream, and those that nobody keeps.
func hear(t *testing.T, s *Search, url string) {
	t.Helper()
	c, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(lookEvery))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	sub, err := c.Subscribe(">", func(m *nats.Msg) {
		s.Add(Messages, m.Subject, fmt.Sprintf("%s %v %s", m.Subject, m.Header, m.Data))
	})
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// dump notes every row of a database, as PostgreSQL writes it.
func dump(t *testing.T, s *Search, name, url string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
	lines := func(sql string) []string {
		rows, err := c.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for _, table := range lines(`select format('%I.%I', schemaname, tablename) from pg_tables
		where schemaname not in ('pg_catalog', 'information_schema')`) {
		for _, row := range lines("select t::text from " + table + " t") {
			s.Add(Rows, name+" "+table, row)
			s.Add(Rows, name+" "+table, decoded(row))
		}
	}
}

// decoded is a row with what is bytes in it as the text that these may be.
func decoded(row string) string {
	var text strings.Builder
	for _, field := range strings.Split(row, `\\x`)[1:] {
		digits := field[:len(field)-len(strings.TrimLeft(field, "0123456789abcdef"))]
		var b []byte
		if _, err := fmt.Sscanf(digits, "%x", &b); err == nil {
			text.Write(append(b, ' '))
		}
	}
	return text.String()
}

// readFile notes what a file holds by now.
func readFile(t *testing.T, s *Search, kind Kind, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return
	}
	s.Add(kind, filepath.Base(path), string(text))
}

// freePort is one of this machine where nobody listens.
func freePort(t *testing.T) int {
	t.Helper()
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return free[0]
}

func localhost(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func freeAddress(t *testing.T) string {
	t.Helper()
	return localhost(freePort(t))
}
