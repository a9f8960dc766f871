package shell

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// FilterFlags are those of commands that choose among instances.
type FilterFlags struct {
	workflow     string
	states       []string
	since, until string
	partial      bool
}

// Add adds the flags to a command.
func (f *FilterFlags) Add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.workflow, "workflow", "", "only those of this workflow")
	flags.StringSliceVar(&f.states, "state", nil, "only those in these states: running, completed, failed, cancelled")
	flags.StringVar(&f.since, "since", "", "only those started from this `time` on: 15m, 2h (ago), 2026-10-01 or 2026-10-01T09:00:00Z")
	flags.StringVar(&f.until, "until", "", "only those started before this `time`")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(
		[]string{"running", "completed", "failed", "cancelled"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	flags.BoolVar(&f.partial, "partial", false, "take what there is when a shard does not answer, and name the shard")
}

// Filter reads the flags of a command.
func (f *FilterFlags) Filter(s *Shell, cmd *cobra.Command) (wiggle.Filter, []wiggle.ListOption, error) {
	out := wiggle.Filter{Workflow: f.workflow}
	known := []wiggle.State{wiggle.Running, wiggle.Completed, wiggle.Failed, wiggle.Cancelled}
	for _, name := range f.states {
		i := slices.IndexFunc(known, func(s wiggle.State) bool { return strings.EqualFold(s.String(), name) })
		if i < 0 {
			return out, nil, Usage(cmd, fmt.Errorf("--state %q: use running, completed, failed or cancelled", name))
		}
		out.States = append(out.States, known[i])
	}
	var err error
	if out.CreatedFrom, err = s.Instant(f.since); err != nil {
		return out, nil, Usage(cmd, fmt.Errorf("--since: %w", err))
	}
	if out.CreatedBefore, err = s.Instant(f.until); err != nil {
		return out, nil, Usage(cmd, fmt.Errorf("--until: %w", err))
	}
	var options []wiggle.ListOption
	if f.partial {
		options = append(options, wiggle.AllowPartial())
	}
	return out, options, nil
}
