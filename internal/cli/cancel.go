package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func newCancel(p *Program) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "cancel ID",
		Short: "End a running instance",
		Long: `End a running instance: nothing more of it is run, and steps that workers are at are
told so. Cancelling one that is cancelled already changes nothing.`,
		Example: `  wiggle cancel wfi.s1.01k6zqk3v8r5d1f0m9c2x7y4ab --reason "the customer called"`,
		Args:    shell.Args(1, 1, "the ID of an instance"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
				if err := c.Cancel(ctx, args[0], reason); err != nil {
					return err
				}
				if p.json() {
					return p.printJSON(map[string]string{"id": args[0], "state": wiggle.Cancelled.String()})
				}
				p.printf("%s %s\n", args[0], wiggle.Cancelled)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people")
	return cmd
}
