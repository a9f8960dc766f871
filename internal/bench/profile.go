package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// profileMargin is what a profile may take beyond its window.
const profileMargin = 30 * time.Second

// profile takes a profile of every process over the window that is about to be measured. finish waits for it.
func (b *bench) profile(ctx context.Context, s *scenario, name string) (finish func() error, err error) {
	if b.opts.Profile == "" {
		return func() error { return nil }, nil
	}
	if err := os.MkdirAll(b.opts.ProfileDir, 0o755); err != nil { //nolint:gosec // to be read
		return nil, err
	}
	all := b.Processes()
	var taking sync.WaitGroup
	errs := make([]error, len(all))
	for i, p := range all {
		file := filepath.Join(b.opts.ProfileDir, fmt.Sprintf("%s-%s-%d.%s.pprof", name, p.Name, i+1, b.opts.Profile))
		taking.Go(func() {
			lead := b.opts.Warmup
			if s.peaks {
				lead += min(b.opts.Duration, peakTime)
			}
			if errs[i] = b.pause(ctx, lead); errs[i] == nil {
				errs[i] = b.fetchProfile(ctx, p.Profiles, file)
			}
		})
	}
	return func() error {
		taking.Wait()
		return errors.Join(errs...)
	}, nil
}

// fetchProfile asks a process for the profile of the coming window.
func (b *bench) fetchProfile(ctx context.Context, from, file string) error {
	ctx, cancel := context.WithTimeout(ctx, b.opts.Duration+profileMargin)
	defer cancel()
	kind := b.opts.Profile
	if kind == "cpu" {
		kind = "profile"
	}
	seconds := strconv.Itoa(max(1, int(b.opts.Duration.Seconds())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from+"/debug/pprof/"+kind+"?seconds="+seconds, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("take a profile: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("take a profile: %s", res.Status)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, res.Body)
	return errors.Join(err, out.Close())
}
