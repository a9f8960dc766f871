package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	// healthcheckTime bounds one check; the next one comes soon.
	healthcheckTime = 3 * time.Second
	// healthcheckBytes is how much of an answer is told.
	healthcheckBytes = 4 << 10
)

// Healthcheck asks a process how it is, at a URL that ends in /readyz or /healthz, for at most three seconds. Its error holds what
// the process says is missing. It is for images that have nothing but the service's binary (OPS-3): there, the binary checks.
func Healthcheck(ctx context.Context, address string) error {
	if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("check: want a URL such as http://127.0.0.1:8420/readyz")
	}
	ctx, cancel := context.WithTimeout(ctx, healthcheckTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil) //nolint:gosec // the operator says which URL
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	// Without a proxy: the process is here.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req) //nolint:gosec // as above
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, healthcheckBytes))
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("check %s: %s: %s", address, res.Status, body)
	}
	return err
}

// healthcheck is the command SERVICE healthcheck URL.
func healthcheck(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("healthcheck takes one URL, such as http://127.0.0.1:8420/readyz")
	}
	return Healthcheck(ctx, args[0])
}
