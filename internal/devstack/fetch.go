package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	embedded "github.com/fergusstrange/embedded-postgres"
)

const fetchVersion = embedded.V17

// noSuchLocale makes initdb fail, see fetch.
const noSuchLocale = "wiggle_fetches_only"

// fetch is fetchInto the user's cache.
func fetch(ctx context.Context, progress io.Writer) (Installation, error) {
	cache, err := fetchDir()
	if err != nil {
		return Installation{}, err
	}
	return fetchInto(ctx, cache, "", progress)
}

// fetchInto downloads PostgreSQL once into a cache and returns it from there afterwards; an empty repository is the
// library's own.
//
// The library has no way to only fetch: its Start downloads, unpacks, and then calls initdb. We run servers ourselves,
// so it is given a locale that initdb refuses, and what it unpacked until then is used.
func fetchInto(ctx context.Context, cache, repository string, progress io.Writer) (Installation, error) {
	programs := filepath.Join(cache, "postgres-"+string(fetchVersion))
	if inst, err := inspect(ctx, filepath.Join(programs, "bin")); err == nil {
		return inst, nil
	}
	_, _ = fmt.Fprintf(progress, "PostgreSQL is missing: fetching %s into %s (once) ...\n", fetchVersion, cache)
	if ctx.Err() != nil {
		return Installation{}, ctx.Err()
	}
	if err := os.MkdirAll(cache, 0o755); err != nil { //nolint:gosec // programs, not secrets
		return Installation{}, err
	}
	scratch, err := os.MkdirTemp(cache, "fetch-*")
	if err != nil {
		return Installation{}, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	port, err := choosePort(true)
	if err != nil {
		return Installation{}, err
	}
	config := embedded.DefaultConfig()
	if repository != "" {
		config = config.BinaryRepositoryURL(repository)
	}
	server := embedded.NewDatabase(config.
		Version(fetchVersion).CachePath(scratch).RuntimePath(filepath.Join(scratch, "run")).
		DataPath(filepath.Join(scratch, "data")).BinariesPath(programs).
		Port(uint32(port)).Locale(noSuchLocale).Logger(io.Discard)) //nolint:gosec // a port
	started := make(chan error, 1)
	go func() { started <- server.Start() }() // has no context; its download ends by itself
	select {
	case err = <-started:
	case <-ctx.Done():
		return Installation{}, fmt.Errorf("fetch PostgreSQL: %w", ctx.Err())
	}
	if err == nil {
		err = server.Stop() // unexpected, but not a failure
	}
	inst, inspectErr := inspect(ctx, filepath.Join(programs, "bin"))
	if inspectErr != nil {
		return Installation{}, fmt.Errorf("fetch PostgreSQL: %w", errors.Join(inspectErr, err))
	}
	return inst, nil
}

// fetchDir is the cache; root's must be readable for the server's account, which a home of mode 0700 is not.
func fetchDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/wiggle", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "wiggle"), nil
}
