package main

import (
	"testing"

	"github.com/wiggle-run/wiggle/internal/pgtest"
)

func TestRun(t *testing.T) {
	t.Setenv(pgtest.EnvURL, "")
	code, err := run(t.Context(), []string{"sh", "-c", `case "$` + pgtest.EnvURL + `" in postgres://*) exit 7;; esac`})
	if code != 7 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
	if code, err := run(t.Context(), []string{"sh", "-c", "kill -TERM $$"}); code != exitSignal+15 || err != nil {
		t.Errorf("killed: code %d, %v", code, err)
	}
	if code, err := run(t.Context(), []string{"/no/such/program"}); code != exitFailure || err == nil {
		t.Errorf("missing: code %d, %v", code, err)
	}
	t.Setenv(pgtest.EnvURL, "given")
	if code, err := run(t.Context(), []string{"sh", "-c", `test "$` + pgtest.EnvURL + `" = given`}); code != 0 || err != nil {
		t.Errorf("a server is given: code %d, %v", code, err)
	}
}
