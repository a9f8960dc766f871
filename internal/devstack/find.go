package devstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	// EnvPostgresBin names the directory with postgres and initdb to use before any other.
	EnvPostgresBin = "WIGGLE_POSTGRES_BIN"
	// MinMajor is the oldest PostgreSQL that Wiggle runs on.
	MinMajor = 14
)

// ErrNotFound says that no usable PostgreSQL is on this machine.
var ErrNotFound = errors.New("no PostgreSQL found")

// usualDirs are where packages put the programs outside PATH.
var usualDirs = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/lib/postgresql*/bin",  // SUSE
	"/usr/pgsql-*/bin",          // PGDG on Red Hat
	"/usr/libexec/postgresql*",  // Alpine
	"/usr/local/pgsql/bin",      // from source
	"/usr/local/opt/postgresql*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// Installation is a set of PostgreSQL programs.
type Installation struct {
	// BinDir holds postgres and initdb.
	BinDir string
	// Major is the major version, such as 17.
	Major int
}

func (i Installation) program(name string) string { return filepath.Join(i.BinDir, name) }

// FindPostgres looks for PostgreSQL on this machine and changes nothing. Of several in the usual directories it takes the
// newest, or that of version preferMajor if this is not 0 and there is one, so that existing data can be opened. The
// error is [ErrNotFound], says what is wrong with WIGGLE_POSTGRES_BIN, or is that of ctx.
func FindPostgres(ctx context.Context, preferMajor int) (Installation, error) {
	if dir := os.Getenv(EnvPostgresBin); dir != "" {
		inst, err := inspect(ctx, dir)
		if err != nil {
			return Installation{}, fmt.Errorf("%s: %w", EnvPostgresBin, err)
		}
		return inst, nil
	}
	var found []Installation
	for _, dir := range candidateDirs(ctx) {
		inst, err := inspect(ctx, dir)
		if err != nil {
			continue
		}
		if preferMajor == 0 || inst.Major == preferMajor {
			return inst, nil
		}
		found = append(found, inst)
	}
	if ctx.Err() != nil {
		return Installation{}, ctx.Err() // programs that were not asked are not missing
	}
	if len(found) == 0 {
		return Installation{}, ErrNotFound
	}
	return found[0], nil
}

// candidateDirs lists directories in the order of preference.
func candidateDirs(ctx context.Context) []string {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	var usual []string
	for _, pattern := range usualDirs {
		matches, _ := filepath.Glob(pattern) // only a malformed pattern fails
		usual = append(usual, matches...)
	}
	slices.SortStableFunc(usual, func(a, b string) int { return cmp.Compare(versionIn(b), versionIn(a)) })
	return append(dirs, usual...)
}

var digits = regexp.MustCompile(`\d+`)

// versionIn is the first number in a path, which in the usual directories is the version; 0 without one.
func versionIn(path string) int {
	n, _ := strconv.Atoi(digits.FindString(path))
	return n
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspect checks that dir holds the programs of a version that is new enough.
func inspect(ctx context.Context, dir string) (Installation, error) {
	inst := Installation{BinDir: dir}
	for _, name := range []string{"postgres", "initdb"} {
		if _, err := os.Stat(inst.program(name)); err != nil {
			return Installation{}, fmt.Errorf("%s has no program %q", dir, name)
		}
	}
	out, err := exec.CommandContext(ctx, inst.program("postgres"), "--version").Output() //nolint:gosec // PostgreSQL, wherever it was found
	if err != nil {
		return Installation{}, fmt.Errorf("%s does not run: %w", inst.program("postgres"), err)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return Installation{}, fmt.Errorf("%s is no PostgreSQL", inst.program("postgres"))
	}
	inst.Major, _ = strconv.Atoi(string(m[1]))
	if inst.Major < MinMajor {
		return Installation{}, fmt.Errorf("PostgreSQL %d in %s is too old; %d or newer is needed", inst.Major, dir, MinMajor)
	}
	return inst, nil
}
