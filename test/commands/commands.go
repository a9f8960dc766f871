// Package commands makes a test's own binary the commands that pages of documentation name, for the shells in which their blocks
// run: nothing has to be built or installed for them, and they have the race detector if the test has.
package commands

import (
	"fmt"
	"os"
	"path/filepath"
)

// name is the environment variable that says which command the binary is.
const name = "WIGGLE_TEST_COMMAND"

// Main ends the process with the exit code of the command that it is to be, and returns if it is the test itself. It is what
// TestMain calls first.
func Main(programs map[string]func() int) {
	if program, ok := programs[os.Getenv(name)]; ok {
		_ = os.Unsetenv(name) // what it starts is something else
		os.Exit(program())
	}
}

// Install makes the commands in a directory for PATH.
func Install(dir string, names ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, command := range names {
		// A program with the race detector waits a second before it ends, for races of its last moment; there are many here.
		script := fmt.Sprintf("#!/bin/sh\nGORACE=atexit_sleep_ms=0 %s=%s exec '%s' \"$@\"\n", name, command, self)
		if err := os.WriteFile(filepath.Join(dir, command), []byte(script), 0o700); err != nil { //nolint:gosec // a program
			return err
		}
	}
	return nil
}
