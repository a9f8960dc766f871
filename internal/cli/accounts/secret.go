package accounts

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
)

const (
	// minPassword is how many characters a password has at least.
	minPassword = 12
	// maxPassword bounds a secret, in bytes.
	maxPassword = 1024
)

// secret is one that a command needs.
type secret struct {
	name string
	// chosen is set for one that does not exist yet: it is asked for twice and has to be long enough.
	chosen bool
}

// secretFlags are those of commands that need secrets.
type secretFlags struct{ stdin bool }

func (f *secretFlags) add(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&f.stdin, "password-stdin", false, "read "+what+" from standard input in place of asking")
}

// read gets the secrets from the terminal, or a line each from standard input.
func (f *secretFlags) read(p *program, cmd *cobra.Command, wanted ...secret) ([]string, error) {
	if f.stdin {
		return readLines(p, cmd, wanted)
	}
	if !p.Interactive() {
		return nil, shell.Usage(cmd, errors.New("standard input is no terminal to ask at: use --password-stdin"))
	}
	values := make([]string, len(wanted))
	for i, w := range wanted {
		value, err := p.AskSecret(w.name + ": ")
		if err != nil {
			return nil, err
		}
		if err := w.check(value); err != nil {
			return nil, err
		}
		if w.chosen {
			again, err := p.AskSecret(w.name + ", once more: ")
			if err != nil {
				return nil, err
			}
			if again != value {
				return nil, shell.Failed("the two are not the same: nothing was done")
			}
		}
		values[i] = value
	}
	return values, nil
}

func readLines(p *program, cmd *cobra.Command, wanted []secret) ([]string, error) {
	text, err := p.ReadFile("-")
	if err != nil {
		return nil, err
	}
	names := make([]string, len(wanted))
	for i, w := range wanted {
		names[i] = "the " + w.name
	}
	values := strings.Split(strings.TrimRight(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n"), "\n")
	if len(values) != len(wanted) {
		return nil, shell.Usage(cmd, fmt.Errorf("--password-stdin: standard input has to have %s, a line each: there are %d lines",
			strings.Join(names, ", then "), len(values)))
	}
	for i, w := range wanted {
		if err := w.check(values[i]); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// check does not repeat the value.
func (s secret) check(value string) error {
	switch {
	case value == "":
		return shell.Failed("the %s is empty", s.name)
	case len(value) > maxPassword || !utf8.ValidString(value):
		return shell.Failed("the %s is no text of at most %d bytes", s.name, maxPassword)
	case s.chosen && utf8.RuneCountInString(value) < minPassword:
		return shell.Failed("the %s is too short: it needs %d characters at least", s.name, minPassword)
	}
	return nil
}
