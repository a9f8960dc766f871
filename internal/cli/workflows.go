package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/graph"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func newWorkflows(p *Program) *cobra.Command {
	version := 0
	cmd := &cobra.Command{
		Use:   "workflows [NAME]",
		Short: "List workflows, or show one",
		Long: `List every version of every workflow, or show one workflow.

With -o json or -o yaml a workflow is printed as the definition that wiggle register reads.`,
		Example: `  wiggle workflows
  wiggle workflows order-fulfilment --version 2 -o yaml > order.yaml`,
		Annotations: map[string]string{formatsOf: outputYAML},
		Args:        shell.Args(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return p.showWorkflow(cmd, args[0], version)
			}
			if p.output == outputYAML {
				return shell.Usage(cmd, shell.Failed("-o yaml shows one workflow: name it"))
			}
			return p.listWorkflows(cmd)
		},
	}
	cmd.Flags().IntVar(&version, "version", 0, "version to show (default the latest)")
	return cmd
}

type workflowJSON struct {
	Name         string `json:"name"`
	Version      int    `json:"version"`
	Nodes        int    `json:"nodes"`
	Fingerprint  string `json:"fingerprint"`
	RegisteredAt any    `json:"registered_at"`
}

// shortFingerprint is how much of a fingerprint tells versions apart for people.
const shortFingerprint = 12

func (p *Program) listWorkflows(cmd *cobra.Command) error {
	return p.withClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		found := []workflowJSON{}
		t := shell.NewTable(p.Out, "NAME", "VERSION", "NODES", "FINGERPRINT", "REGISTERED")
		for w, err := range c.Workflows(ctx) {
			if err != nil {
				return err
			}
			found = append(found, workflowJSON{w.Name, w.Version, w.Nodes, w.Fingerprint, shell.TimeJSON(w.RegisteredAt)})
			t.Row(w.Name, strconv.Itoa(w.Version), strconv.Itoa(w.Nodes), w.Fingerprint[:min(shortFingerprint, len(w.Fingerprint))],
				p.when(w.RegisteredAt))
		}
		switch {
		case p.json():
			return p.printJSON(map[string]any{"workflows": found})
		case len(found) == 0:
			p.printf("no workflows: register one with wiggle register -f FILE\n")
		default:
			t.Flush()
		}
		return nil
	})
}

func (p *Program) showWorkflow(cmd *cobra.Command, name string, version int) error {
	return p.withClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		def, err := c.Workflow(ctx, name, version)
		if err != nil {
			return err
		}
		text, err := json.Marshal(def)
		if err != nil {
			return fmt.Errorf("show %s: %w", name, err)
		}
		switch p.output {
		case outputJSON:
			return p.printJSON(json.RawMessage(text))
		case outputYAML:
			if text, err = yaml.JSONToYAML(text); err != nil {
				return fmt.Errorf("show %s: %w", name, err)
			}
			p.printf("%s", text)
			return nil
		}
		p.printf("%s version %d, fingerprint %s\n\n%s\n", def.Name(), def.Version(), def.Fingerprint()[:shortFingerprint], graph.Text(def))
		return nil
	})
}
