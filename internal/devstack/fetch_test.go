package devstack

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFetch fetches from a repository of its own, whose archive holds programs that only tell their version.
func TestFetch(t *testing.T) {
	t.Parallel()
	requests := 0
	repository := httptest.NewServer(archiveHandler(t, &requests))
	defer repository.Close()
	defer repository.CloseClientConnections()
	defer http.DefaultClient.CloseIdleConnections() // what the library uses

	cache := testDir(t)
	var progress strings.Builder
	inst, err := fetchInto(t.Context(), cache, repository.URL, &progress)
	if err != nil || inst.Major != 17 || strings.Count(progress.String(), "\n") != 1 {
		t.Fatalf("%+v, %v, %q", inst, err, progress.String())
	}
	left, _ := filepath.Glob(filepath.Join(cache, "*"))
	if len(left) != 1 {
		t.Errorf("left in the cache: %v", left)
	}
	before := requests
	progress.Reset()
	again, err := fetchInto(t.Context(), cache, repository.URL, &progress)
	if err != nil || again != inst || progress.Len() != 0 || requests != before {
		t.Errorf("again: %+v, %v, %q", again, err, progress.String())
	}
}

// archiveHandler serves a jar as the repository has it: a zip with one .txz inside, and its checksum.
func archiveHandler(t *testing.T, requests *int) http.Handler {
	t.Helper()
	// Made by `tar -cJf installation.txz bin`, of what fakeInstallation writes for 17.5, with an initdb that only exits with
	// 1: not every machine has xz, and the library only reads it.
	txz, err := os.ReadFile(filepath.Join("testdata", "installation.txz"))
	if err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	w, err := z.Create("postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(txz); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(jar.Bytes())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests++
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:])))
			return
		}
		_, _ = w.Write(jar.Bytes())
	})
}

func fakeProgram(t *testing.T, path, script string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}
