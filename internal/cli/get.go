package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/internal/cli/timeline"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func newGet(p *Program) *cobra.Command {
	var history bool
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show an instance: its state, context, and where it stands",
		Long: `Show one instance as its own shard has it now.

With --history also what happened, drawn over time: a line for each attempt, how long it
waited for a worker and ran, and branches indented.`,
		Example: `  wiggle get wfi.s1.01k6zqk3v8r5d1f0m9c2x7y4ab --history
  wiggle get wfi.s1.01k6zqk3v8r5d1f0m9c2x7y4ab -o json | jq .context`,
		Args: shell.Args(1, 1, "the ID of an instance"),
		RunE: func(cmd *cobra.Command, args []string) error { return p.get(cmd, args[0], history) },
	}
	cmd.Flags().BoolVar(&history, "history", false, "also show what happened")
	return cmd
}

func (p *Program) get(cmd *cobra.Command, id string, withHistory bool) error {
	return p.withClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		inst, err := c.Get(ctx, id)
		if err != nil {
			return err
		}
		var history []wiggle.HistoryEntry
		if withHistory {
			if history, err = readHistory(ctx, c, id); err != nil {
				return err
			}
		}
		if p.json() {
			document := toInstanceJSON(inst)
			if withHistory {
				document.History = toHistoryJSON(history)
			}
			return p.printJSON(document)
		}
		p.printInstance(inst)
		if withHistory {
			p.printf("\nhistory\n")
			return p.drawTimeline(inst, history)
		}
		return nil
	})
}

func readHistory(ctx context.Context, c *wiggle.Client, id string) ([]wiggle.HistoryEntry, error) {
	var history []wiggle.HistoryEntry
	for entry, err := range c.History(ctx, id) {
		if err != nil {
			return nil, err
		}
		history = append(history, entry)
	}
	return history, nil
}

func (p *Program) drawTimeline(inst *wiggle.Instance, history []wiggle.HistoryEntry) error {
	return timeline.Draw(p.Out, inst, history, timeline.Options{Width: p.width(), ASCII: !p.unicode(), Now: p.Now()})
}

func (p *Program) printInstance(i *wiggle.Instance) {
	t := shell.NewTable(p.Out)
	t.Row("id", i.ID)
	t.Row("workflow", fmt.Sprintf("%s, version %d", i.Workflow, i.Version))
	t.Row("state", i.State.String())
	t.Row("priority", fmt.Sprint(i.Priority))
	t.Row("started", p.when(i.CreatedAt))
	if !i.EndedAt.IsZero() {
		t.Row("ended", p.when(i.EndedAt))
	}
	t.Row("took", p.took(i))
	t.Flush()
	if i.Failure != nil {
		p.printf("failure\n%s\n", indent(i.Failure.String(), "  "))
	}
	p.printf("context\n%s\n", indent(payloadText(i.Context()), "  "))
	if len(i.Tokens) == 0 {
		return
	}
	p.printf("tokens")
	if i.ActiveTokens > len(i.Tokens) {
		p.printf(" (the oldest %d of %d)", len(i.Tokens), i.ActiveTokens)
	}
	p.printf("\n")
	t = shell.NewTable(p.Out, "  NODE", "STATE", "BRANCH", "ATTEMPT", "DUE", "WORKER", "LAST FAILURE")
	for _, token := range i.Tokens {
		t.Row(p.tokenCells(token)...)
	}
	t.Flush()
}

func (p *Program) tokenCells(t wiggle.Token) []string {
	attempt, failure, state := "-", "-", t.State
	if t.Attempt > 0 {
		attempt = fmt.Sprint(t.Attempt)
	}
	if t.LastFailure != nil {
		failure = t.LastFailure.Type + ": " + t.LastFailure.Message
	}
	if t.PendingBranches > 0 {
		state = fmt.Sprintf("%s (%d to come)", state, t.PendingBranches)
	}
	return []string{"  " + t.Node, state, orDash(t.Branch), attempt, p.when(t.DueAt), orDash(t.Worker), failure}
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
