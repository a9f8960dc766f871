package shell

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes, as `wiggle help exit-codes` tells them.
const (
	ExitOK              = 0
	ExitFailure         = 1
	ExitUsage           = 2
	ExitNotFound        = 3
	ExitUnavailable     = 4
	ExitNotWell         = 5
	ExitUnauthenticated = 6
	ExitDenied          = 7
	ExitInterrupted     = 130
)

// Failure is an error that says itself how to end.
type Failure struct {
	Exit int
	// Kind and Message are those of the error's document, Hint the way out.
	Kind, Message, Hint string
	// Err is what it came of, if that is an error.
	Err error
	// Told is set if what went wrong has been printed already.
	Told bool
}

// Error is the message, or that of what it came of.
func (f *Failure) Error() string {
	if f.Message == "" && f.Err != nil {
		return f.Err.Error()
	}
	return f.Message
}

// Unwrap is what it came of.
func (f *Failure) Unwrap() error { return f.Err }

// Failed is the error of what went wrong.
func Failed(format string, args ...any) error {
	return &Failure{Exit: ExitFailure, Message: fmt.Sprintf(format, args...)}
}

// Usage is the error of a command line that is wrong.
func Usage(cmd *cobra.Command, err error) error {
	return &Failure{
		Exit: ExitUsage, Kind: "usage", Message: err.Error(),
		Hint: fmt.Sprintf("see %s --help", cmd.CommandPath()), Err: err,
	}
}

// Args checks the number of arguments and names those that are missing. There is no most if it is negative.
func Args(least, most int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return Usage(cmd, fmt.Errorf("%s: missing %s", cmd.Name(), names))
		case most >= 0 && len(args) > most:
			return Usage(cmd, fmt.Errorf("%s: %q is one argument too many", cmd.Name(), args[most]))
		}
		return nil
	}
}

// annotationFamily is that of commands that only have subcommands.
const annotationFamily = "family"

// IsFamily tells whether a command is one that Family has made.
func IsFamily(cmd *cobra.Command) bool { return cmd.Annotations[annotationFamily] != "" }

// Family makes a command that only has subcommands tell what is wrong with the one that was given.
func Family(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{annotationFamily: "yes"}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var names []string
		for _, c := range cmd.Commands() {
			names = append(names, c.Name())
		}
		known := strings.Join(names, ", ")
		if len(args) == 0 {
			return Usage(cmd, fmt.Errorf("%s: say which: %s", cmd.Name(), known))
		}
		return Usage(cmd, fmt.Errorf("%s: there is no %q; there are %s", cmd.Name(), args[0], known))
	}
	return cmd
}
