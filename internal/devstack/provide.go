package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// ProvideOptions say how far [Provide] may go.
type ProvideOptions struct {
	// PreferMajor is the version to prefer, 0 for the newest.
	PreferMajor int
	// NoInstall forbids the package manager, NoFetch the download.
	NoInstall, NoFetch bool
	// Progress receives one line per lengthy step. Default: standard error.
	Progress io.Writer
}

// Provide finds PostgreSQL, or else installs or fetches it; the package comment says in which order. Several processes
// may do so at once: they wait for the first.
func Provide(ctx context.Context, opts ProvideOptions) (Installation, error) {
	inst, err := FindPostgres(ctx, opts.PreferMajor)
	if !errors.Is(err, ErrNotFound) {
		return inst, err
	}
	if opts.Progress == nil {
		opts.Progress = os.Stderr
	}
	release, err := lockProvide(ctx)
	if err != nil {
		return Installation{}, err
	}
	defer release()
	if inst, err := FindPostgres(ctx, opts.PreferMajor); err == nil {
		return inst, nil // another process was first
	}
	var tried []error
	if !opts.NoInstall {
		if inst, err = install(ctx, opts); err == nil {
			return inst, nil
		}
		tried = append(tried, err)
	}
	if !opts.NoFetch {
		if inst, err = fetch(ctx, opts.Progress); err == nil {
			return inst, nil
		}
		tried = append(tried, err)
	}
	return Installation{}, fmt.Errorf("%w: install PostgreSQL %d or newer (%s), or set %s to the directory of its programs: %w",
		ErrNotFound, MinMajor, installHint(), EnvPostgresBin, errors.Join(tried...))
}
