package devstack

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeInstallation makes programs that claim a version.
func fakeInstallation(t *testing.T, dir, version string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "initdb"} {
		fakeProgram(t, filepath.Join(dir, name), "echo 'postgres (PostgreSQL) "+version+"'")
	}
}

func TestFindPostgresByEnvironment(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(EnvPostgresBin, dir)
	if _, err := FindPostgres(t.Context(), 0); err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), EnvPostgresBin) {
		t.Errorf("an empty directory: %v", err)
	}
	fakeInstallation(t, dir, "9.6.1")
	if _, err := FindPostgres(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "too old") {
		t.Errorf("an old one: %v", err)
	}
	fakeInstallation(t, dir, "18.1 (Debian 18.1-1)")
	if inst, err := FindPostgres(t.Context(), 15); err != nil || inst.Major != 18 || inst.BinDir != dir {
		t.Errorf("%+v, %v", inst, err)
	}
}

func TestFindPostgresOnPath(t *testing.T) {
	root := t.TempDir()
	fakeInstallation(t, filepath.Join(root, "real"), "17.5")
	if err := os.Symlink(filepath.Join(root, "real", "postgres"), filepath.Join(root, "postgres")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", root+":/bin:/usr/bin")
	if inst, err := FindPostgres(t.Context(), 0); err != nil || inst.Major != 17 {
		t.Errorf("%+v, %v", inst, err)
	}
}

func TestVersionIn(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]int{
		"/usr/lib/postgresql/9/bin": 9, "/usr/lib/postgresql/17/bin": 17, "/usr/pgsql-16/bin": 16, "/usr/local/pgsql/bin": 0,
		"/opt/homebrew/opt/postgresql@15/bin": 15,
	} {
		if got := versionIn(path); got != want {
			t.Errorf("%s: %d", path, got)
		}
	}
}

func TestProvideSaysWhatToRun(t *testing.T) {
	if inst, err := FindPostgres(t.Context(), 0); err == nil {
		got, err := Provide(t.Context(), ProvideOptions{NoInstall: true, NoFetch: true})
		if err != nil || got != inst {
			t.Errorf("%+v, %v", got, err)
		}
	}
	old := usualDirs
	usualDirs = nil
	t.Cleanup(func() { usualDirs = old })
	t.Setenv("PATH", t.TempDir())
	_, err := Provide(t.Context(), ProvideOptions{NoInstall: true, NoFetch: true})
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), EnvPostgresBin) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

func TestPlaceFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "etc", "file")
	remove, err := placeFile(path, "ours", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := placeFile(path, "other", 0o644); err != nil || again() != nil || !exists(path) {
		t.Errorf("an existing file: %v", err)
	}
	if err := remove(); err != nil || exists(path) {
		t.Errorf("removing: %v", err)
	}
}
