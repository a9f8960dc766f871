package cli

import (
	"io"
	"time"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
)

// shell is the program as families of commands with packages of their own see it.
func (p *Program) shell() *shell.Shell {
	return &shell.Shell{
		WithClient: p.withClient, WithClientFor: p.withClientFor, WithKey: p.withKey, Server: p.serverURL,
		Sessions: p.sessions, In: func() io.Reader { return p.In }, Interactive: func() bool { return p.Interactive },
		ReadSecret: func() (string, error) { return p.ReadSecret() },
		Namespace:  func() string { return p.namespace }, Environ: func() []string { return p.Environ },
		JSON: p.json, PrintJSON: p.printJSON,
		Out: func() io.Writer { return p.Out }, Err: func() io.Writer { return p.Err },
		Colours: func() bool { return p.Colours },
		NewBar:  func() *shell.Bar { return shell.NewBar(p.Err, p.Terminal, p.unicode()) },
		Now:     func() time.Time { return p.Now() }, When: p.when, Location: func() *time.Location { return p.Location },
		PayloadText: payloadText, ReadFile: p.readFile, ReadInput: p.readInput, Instant: p.instant,
	}
}
