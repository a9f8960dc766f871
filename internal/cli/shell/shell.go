// Package shell is what families of commands that have packages of their own share with all others: how they reach the
// router, how they choose instances, how they print and how they fail.
package shell

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/credentials"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// Shell is made once for a program. Its functions may be called while a command runs.
type Shell struct {
	// WithClient runs a command against the router. WithClientFor is for what takes long: without --timeout it has no end.
	WithClient, WithClientFor func(cmd *cobra.Command, do func(ctx context.Context, c *wiggle.Client) error) error
	// WithKey is WithClient with this API key, or token of a session, in place of the program's own; empty shows none.
	WithKey func(cmd *cobra.Command, key string, do func(ctx context.Context, c *wiggle.Client) error) error
	// Sessions are those that `wiggle login` has begun.
	Sessions func() *credentials.Store
	// Server is the URL of the router, Namespace what --namespace says: empty if it was not given.
	Server, Namespace func() string
	// Environ is the program's environment.
	Environ func() []string
	// JSON tells whether one document is to be printed in place of text, which PrintJSON does.
	JSON      func() bool
	PrintJSON func(document any) error
	// Out is where text goes, Err what is said beside it.
	Out, Err func() io.Writer
	// In is where answers come from, Interactive tells whether that is a terminal. ReadSecret reads a line there without
	// showing it.
	In          func() io.Reader
	Interactive func() bool
	ReadSecret  func() (string, error)
	// Colours tells whether found words may stand out where text goes.
	Colours func() bool
	// NewBar makes a bar for something long.
	NewBar func() *Bar
	// Now is the time. When shows an instant in the reader's time zone, Location.
	Now      func() time.Time
	When     func(t time.Time) string
	Location func() *time.Location
	// PayloadText is a payload for people.
	PayloadText func(v wiggle.Payload) string
	// ReadFile reads a file, or standard input (-); ReadInput the value of an --input.
	ReadFile  func(name string) ([]byte, error)
	ReadInput func(cmd *cobra.Command, text string) (any, error)
	// Instant reads a point in time.
	Instant func(text string) (time.Time, error)
}

// TimeJSON is a time of a document; nil for none.
func TimeJSON(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// PrintJSONLine prints a document of many on a line of its own.
func (s *Shell) PrintJSONLine(document any) error {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		return fmt.Errorf("print in JSON: %w", err)
	}
	_, err := s.Out().Write(out.Bytes())
	return err
}
