package process_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/settings"
)

const (
	keyOne = "0123456789abcdef0123456789abcdef"
	keyTwo = "fedcba9876543210fedcba9876543210"
)

// apart loads a process whose service listens at an address.
func apart(addr string, public bool, environ ...string) (*process.Process, error) {
	return process.Load(process.Spec{
		Name: "wiggle-some", Port: process.Port{Setting: "WIGGLE_SOME_ADDR", Addr: &addr, Public: public},
		Declare: func(r *settings.Registry) { r.Section("some") },
	}, append([]string{database, "WIGGLE_LOG_LEVEL=error"}, environ...))
}

// TestServicesKnowEachOther: a port takes nobody for a service without reason, also where other machines do not reach it (AUT-4).
func TestServicesKnowEachOther(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		addr    string
		public  bool
		environ []string
		refused bool
	}{
		{"127.0.0.1:8430", false, nil, true},
		{"[::1]:8430", false, nil, true},
		{"localhost:8430", false, nil, true},
		{"127.0.0.1:8430", false, []string{"WIGGLE_SERVICE_KEY=" + keyOne}, false},
		{"127.0.0.1:8430", false, []string{"WIGGLE_AUTH=off"}, false},
		{":8430", false, nil, true},
		{"0.0.0.0:8430", false, nil, true},
		{"10.0.0.5:8430", false, nil, true},
		{"instances:8430", false, nil, true},
		{":8430", true, nil, false},
		{":8430", false, []string{"WIGGLE_SERVICE_KEY=" + keyOne}, false},
		{":8430", false, []string{"WIGGLE_AUTH=off"}, false},
	} {
		_, err := apart(c.addr, c.public, c.environ...)
		if (err != nil) != c.refused {
			t.Errorf("%q, %t, %q: %v", c.addr, c.public, c.environ, err)
		}
		if err == nil {
			continue
		}
		for _, want := range []string{
			"WIGGLE_SOME_ADDR", "WIGGLE_SERVICE_KEY", "WIGGLE_SERVICE_KEY_FILE", "openssl rand", "WIGGLE_TLS_CLIENT_CA", "WIGGLE_AUTH=off",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the refusal does not name %s: %v", want, err)
			}
		}
	}
}

// equipped runs a process for as long as it takes to see its transport.
func equipped(t *testing.T, addr string, public bool, environ ...string) rpc.Transport {
	t.Helper()
	p, err := apart(addr, public, environ...)
	if err != nil {
		t.Fatal(err)
	}
	var transport rpc.Transport
	enough := errors.New("enough")
	err = p.Run(t.Context(), func(_ context.Context, e process.Equipment) (process.Wiring, error) {
		transport = e.Transport
		return process.Wiring{}, enough
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	return transport
}

func TestTransport(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(keyTwo+"\n"+keyOne+" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		addr     string
		public   bool
		environ  []string
		keys     string
		required bool
	}{
		{"127.0.0.1:0", true, nil, "", false},
		{":0", false, []string{"WIGGLE_AUTH=off"}, "", false},
		{":0", false, []string{"WIGGLE_SERVICE_KEY=" + keyOne + ", " + keyTwo, "WIGGLE_AUTH=off"}, keyOne + " " + keyTwo, true},
		{"127.0.0.1:0", false, []string{"WIGGLE_SERVICE_KEY_FILE=" + file}, keyTwo + " " + keyOne, true},
		{":0", true, []string{"WIGGLE_SERVICE_KEY=" + keyOne}, keyOne, false},
	} {
		got := equipped(t, c.addr, c.public, c.environ...)
		if strings.Join(got.ServiceKeys, " ") != c.keys || got.RequireService != c.required || got.ServiceCertificates || got.ServerTLS != nil {
			t.Errorf("%q: %+v", c.environ, got)
		}
	}
	limited := equipped(t, ":0", true, "WIGGLE_LIMIT_HEADER_BYTES=8KiB", "WIGGLE_LIMIT_STREAMS=7", "WIGGLE_LIMIT_CALL=90s").Limits
	if limited.HeaderBytes != 8<<10 || limited.Streams != 7 || limited.CallDuration.Seconds() != 90 {
		t.Errorf("limits: %+v", limited)
	}
}

// Everything that is wrong with keys and files is told at once, without a key (OPS-2, AUT-10).
func TestTransportRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ environ, want []string }{
		{
			[]string{"WIGGLE_SERVICE_KEY=short,with a space in it 0123456789abcdef", "WIGGLE_TLS_CERT=" + dir + "/a", "WIGGLE_TLS_KEY=" + dir + "/b"},
			[]string{"number 1) that has 5 characters", "number 2) that has characters", "TLS: open " + dir + "/a", "TLS: open " + dir + "/b"},
		},
		{[]string{"WIGGLE_SERVICE_KEY=" + keyOne, "WIGGLE_SERVICE_KEY_FILE=" + empty}, []string{"set one of them"}},
		{[]string{"WIGGLE_SERVICE_KEY_FILE=" + empty}, []string{"WIGGLE_SERVICE_KEY_FILE: holds no key"}},
		{[]string{"WIGGLE_SERVICE_KEY_FILE=" + dir + "/none"}, []string{"WIGGLE_SERVICE_KEY_FILE: stat"}},
		{[]string{"WIGGLE_SERVICE_KEY=" + strings.Repeat(keyOne+",", 9)}, []string{"holds 9 keys"}},
		{[]string{"WIGGLE_TLS_CERT=" + empty}, []string{"WIGGLE_TLS_KEY: is not set"}},
		{[]string{"WIGGLE_TLS_CLIENT_CA=" + empty}, []string{"WIGGLE_TLS_CLIENT_CA: is set, and WIGGLE_TLS_CERT is not"}},
		{[]string{"WIGGLE_TLS_CA=" + empty}, []string{"holds no certificate"}},
	} {
		_, err := apart(":0", false, c.environ...)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", c.environ, err, want)
			}
		}
		if err != nil && (strings.Contains(err.Error(), keyOne) || strings.Contains(err.Error(), "with a space")) {
			t.Errorf("the refusal tells the key: %v", err)
		}
	}
}
