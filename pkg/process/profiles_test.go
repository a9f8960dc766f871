package process_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
)

func TestProfiles(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	p, _, err := load(t, database, "WIGGLE_PPROF_ADDR="+addr)
	if err != nil {
		t.Fatal(err)
	}
	mounted := map[string]bool{}
	err = p.Run(t.Context(), func(context.Context, process.Equipment) (process.Wiring, error) {
		return process.Wiring{
			Mount: func(pattern string, _ http.Handler) { mounted[pattern] = true },
			Services: []lifecycle.Component{{Name: "asks", Run: func(ctx context.Context) error {
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
				for _, path := range []string{"", "heap", "mutex", "block", "profile?seconds=1"} {
					res, err := client.Get("http://" + addr + "/debug/pprof/" + path)
					if err != nil {
						return err
					}
					body, err := io.ReadAll(res.Body)
					_ = res.Body.Close()
					if err != nil || res.StatusCode != http.StatusOK || len(body) == 0 {
						t.Errorf("%q: %s, %d bytes, %v", path, res.Status, len(body), err)
					}
				}
				return context.Canceled
			}}},
		}, nil
	})
	if err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("run: %v", err)
	}
	if len(mounted) != 1 {
		t.Errorf("on the service's own port: %v", mounted)
	}
}

func TestProfilesStayHere(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{":6060", "0.0.0.0:6060", "10.0.0.1:6060", "example.com:6060", "6060"} {
		if err := process.ServeProfiles(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("%q: %v", addr, err)
		}
	}
}
