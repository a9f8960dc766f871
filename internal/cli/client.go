package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// A command is there to be watched: a server that is away is told soon.
const (
	retryAttempts = 3
	retryFirst    = 100 * time.Millisecond
	retryLongest  = time.Second
)

func (p *Program) serverURL() string {
	if p.server != "" {
		return p.server
	}
	if url, _ := p.getenv(envServer); url != "" {
		return url
	}
	return defaultServer
}

// withClient runs a command against the router.
func (p *Program) withClient(cmd *cobra.Command, do func(ctx context.Context, c *wiggle.Client) error) error {
	return p.connect(cmd, func(c *wiggle.Client) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
		defer cancel()
		return do(ctx, c)
	})
}

// withClientFor is withClient for what takes long: without --timeout it has no end.
func (p *Program) withClientFor(cmd *cobra.Command, do func(ctx context.Context, c *wiggle.Client) error) error {
	return p.connect(cmd, func(c *wiggle.Client) error {
		ctx, cancel := p.waitContext(cmd)
		defer cancel()
		return do(ctx, c)
	})
}

func (p *Program) connect(cmd *cobra.Command, do func(c *wiggle.Client) error) error {
	client, err := wiggle.Dial(p.serverURL(), wiggle.WithNamespace(p.namespace),
		wiggle.WithRetries(retryAttempts, retryFirst, retryLongest), wiggle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return shell.Usage(cmd, err)
	}
	defer client.Close()
	return do(client)
}

// waitContext is for waiting: without --timeout it has no end.
func (p *Program) waitContext(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	if cmd.Flags().Changed("timeout") {
		return context.WithTimeout(cmd.Context(), p.timeout)
	}
	return context.WithCancel(cmd.Context())
}
