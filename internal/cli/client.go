package cli

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/process"
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

// withKey is withClient with this key, or token of a session, in place of the program's own; empty shows none.
func (p *Program) withKey(cmd *cobra.Command, key string, do func(ctx context.Context, c *wiggle.Client) error) error {
	p.shown = sourceGiven
	return p.dial(cmd, wiggle.WithAPIKey(key), func(c *wiggle.Client) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
		defer cancel()
		return do(ctx, c)
	})
}

func (p *Program) connect(cmd *cobra.Command, do func(c *wiggle.Client) error) error {
	credential, err := p.credential(cmd)
	if err != nil {
		return err
	}
	return p.dial(cmd, credential, do)
}

func (p *Program) dial(cmd *cobra.Command, credential wiggle.ClientOption, do func(c *wiggle.Client) error) error {
	client, err := wiggle.Dial(p.serverURL(), credential, wiggle.WithNamespace(p.namespace), wiggle.WithConnectOptions(named()),
		wiggle.WithRetries(retryAttempts, retryFirst, retryLongest), wiggle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return shell.Usage(cmd, err)
	}
	defer client.Close()
	return do(client)
}

// named has calls tell which program makes them: what people read beside their sessions.
func named() connect.ClientOption {
	name := fmt.Sprintf("wiggle/%s (%s)", process.Release(), runtime.GOOS)
	return connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			req.Header().Set("User-Agent", name)
			return next(ctx, req)
		}
	}))
}

// waitContext is for waiting: without --timeout it has no end.
func (p *Program) waitContext(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	if cmd.Flags().Changed("timeout") {
		return context.WithTimeout(cmd.Context(), p.timeout)
	}
	return context.WithCancel(cmd.Context())
}
