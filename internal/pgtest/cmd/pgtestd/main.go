// Command pgtestd runs a command with a PostgreSQL server for its tests:
//
//	go run ./internal/pgtest/cmd/pgtestd -- go test ./...
//
// The server's address is in WIGGLE_TEST_POSTGRES_URL; one that is set already is used and nothing is started. The server
// is stopped when the command ends, and pgtestd exits with the command's code. Interrupts are left to the command, which
// shares the terminal; a second one, or SIGTERM, is passed on to it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/wiggle-run/wiggle/internal/pgtest"
)

const (
	exitUsage   = 2
	exitFailure = 1
	exitSignal  = 128
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: pgtestd -- command [arguments]")
		os.Exit(exitUsage)
	}
	code, err := run(context.Background(), args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgtestd:", err)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (code int, err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // what the caller asked for
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if os.Getenv(pgtest.EnvURL) == "" {
		server, err := pgtest.StartServer(ctx)
		if err != nil {
			return exitFailure, err
		}
		defer func() {
			if stopErr := pgtest.StopServer(server); stopErr != nil && err == nil {
				code, err = max(code, exitFailure), stopErr
			}
		}()
		cmd.Env = pgtest.Environ(server)
	}
	if err := cmd.Start(); err != nil {
		return exitFailure, err
	}
	ended := make(chan struct{})
	go forward(signals, cmd.Process, ended)
	err = cmd.Wait()
	close(ended)
	return exitCode(err)
}

// forward passes signals on until the command has ended. The first interrupt has reached it already, from the terminal.
func forward(signals <-chan os.Signal, to *os.Process, ended <-chan struct{}) {
	interrupts := 0
	for {
		select {
		case <-ended:
			return
		case sig := <-signals:
			if sig == os.Interrupt {
				if interrupts++; interrupts == 1 {
					continue
				}
			}
			_ = to.Signal(sig)
		}
	}
}

func exitCode(err error) (int, error) {
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return 0, nil
	case !ok:
		return exitFailure, err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
