package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// filterFlags are those of list and count.
type filterFlags struct {
	workflow     string
	states       []string
	since, until string
	partial      bool
}

func (f *filterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.workflow, "workflow", "", "only those of this workflow")
	flags.StringSliceVar(&f.states, "state", nil, "only those in these states: running, completed, failed, cancelled")
	flags.StringVar(&f.since, "since", "", "only those started from this `time` on: 15m, 2h (ago), 2026-10-01 or 2026-10-01T09:00:00Z")
	flags.StringVar(&f.until, "until", "", "only those started before this `time`")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(
		[]string{"running", "completed", "failed", "cancelled"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	flags.BoolVar(&f.partial, "partial", false, "take what there is when a shard does not answer, and name the shard")
}

func (f *filterFlags) filter(p *Program, cmd *cobra.Command) (wiggle.Filter, []wiggle.ListOption, error) {
	out := wiggle.Filter{Workflow: f.workflow}
	known := []wiggle.State{wiggle.Running, wiggle.Completed, wiggle.Failed, wiggle.Cancelled}
	for _, name := range f.states {
		i := slices.IndexFunc(known, func(s wiggle.State) bool { return strings.EqualFold(s.String(), name) })
		if i < 0 {
			return out, nil, usageOf(cmd, fmt.Errorf("--state %q: use running, completed, failed or cancelled", name))
		}
		out.States = append(out.States, known[i])
	}
	var err error
	if out.CreatedFrom, err = p.instant(f.since); err != nil {
		return out, nil, usageOf(cmd, fmt.Errorf("--since: %w", err))
	}
	if out.CreatedBefore, err = p.instant(f.until); err != nil {
		return out, nil, usageOf(cmd, fmt.Errorf("--until: %w", err))
	}
	var options []wiggle.ListOption
	if f.partial {
		options = append(options, wiggle.AllowPartial())
	}
	return out, options, nil
}

// instant reads a point in time: a duration ago, a day, or an instant.
func (p *Program) instant(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return p.Now().Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, p.Location); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time: use 15m or 2h for so long ago, 2026-10-01, or 2026-10-01T09:00:00Z", text)
}

const (
	defaultLimit = 50
	maxPage      = 1000
)

func newList(p *Program) *cobra.Command {
	var f filterFlags
	limit, all := defaultLimit, false
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List instances, newest first",
		Example: `  wiggle list --state failed --since 24h
  wiggle list --workflow order-fulfilment --all -o json | jq -r '.instances[].id'`,
		Args: argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return usageOf(cmd, fmt.Errorf("--limit %d: use 1 or more, or --all", limit))
			}
			if all {
				limit = 0
			}
			return p.list(cmd, f, limit)
		},
	}
	f.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", limit, "how many to list at most")
	cmd.Flags().BoolVar(&all, "all", false, "list all there are")
	return cmd
}

type shardErrorJSON struct {
	Shard int    `json:"shard"`
	Error string `json:"error"`
}

// listJSON is what `wiggle list -o json` prints.
type listJSON struct {
	Instances []instanceJSON `json:"instances"`
	// More is true if the limit left some out.
	More          bool             `json:"more"`
	MissingShards []shardErrorJSON `json:"missing_shards,omitempty"`
}

func (p *Program) list(cmd *cobra.Command, f filterFlags, limit int) error {
	filter, options, err := f.filter(p, cmd)
	if err != nil {
		return err
	}
	page := maxPage
	if limit > 0 {
		page = min(limit+1, maxPage)
	}
	options = append(options, wiggle.PageSize(page))
	return p.withClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		var found []*wiggle.Instance
		var missing *wiggle.PartialError
		more := false
		for inst, err := range c.List(ctx, filter, options...) {
			if err != nil && !errors.As(err, &missing) {
				return err
			}
			if inst == nil {
				continue
			}
			if limit > 0 && len(found) == limit {
				more = true
				break
			}
			found = append(found, inst)
		}
		return p.printList(found, more, missing)
	})
}

func (p *Program) printList(found []*wiggle.Instance, more bool, missing *wiggle.PartialError) error {
	if p.json() {
		document := listJSON{Instances: []instanceJSON{}, More: more, MissingShards: missingJSON(missing)}
		for _, i := range found {
			document.Instances = append(document.Instances, toInstanceJSON(i))
		}
		return p.printJSON(document)
	}
	if len(found) == 0 {
		p.printf("no instances\n")
	} else {
		t := newTable(p.Out, "ID", "WORKFLOW", "VERSION", "STATE", "STARTED", "TOOK")
		for _, i := range found {
			t.row(i.ID, i.Workflow, strconv.Itoa(i.Version), i.State.String(), p.when(i.CreatedAt), p.took(i))
		}
		t.flush()
	}
	if more {
		_, _ = fmt.Fprintf(p.Err, "the newest %d; there are more: use --limit or --all\n", len(found))
	}
	p.warnMissing(missing)
	return nil
}

func missingJSON(missing *wiggle.PartialError) []shardErrorJSON {
	if missing == nil {
		return nil
	}
	var out []shardErrorJSON
	for _, m := range missing.Missing {
		out = append(out, shardErrorJSON{m.Shard, shardErrorText(m.Err)})
	}
	return out
}

func (p *Program) warnMissing(missing *wiggle.PartialError) {
	if missing == nil {
		return
	}
	for _, m := range missing.Missing {
		_, _ = fmt.Fprintf(p.Err, "wiggle: shard %d is missing from the result: %s\n", m.Shard, shardErrorText(m.Err))
	}
}

// shardErrorText is why a shard is missing, without what the command was doing.
func shardErrorText(err error) string {
	if e, ok := errors.AsType[*wiggle.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

func newCount(p *Program) *cobra.Command {
	var f filterFlags
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count instances, by state and by shard",
		Example: `  wiggle count --workflow order-fulfilment --since 1h
  wiggle count --state running -o json | jq .total`,
		Args: argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.count(cmd, f) },
	}
	f.add(cmd)
	return cmd
}

// countJSON is what `wiggle count -o json` prints.
type countJSON struct {
	Total         int64            `json:"total"`
	ByState       map[string]int64 `json:"by_state"`
	ByShard       map[int]int64    `json:"by_shard"`
	MissingShards []shardErrorJSON `json:"missing_shards,omitempty"`
}

func (p *Program) count(cmd *cobra.Command, f filterFlags) error {
	filter, options, err := f.filter(p, cmd)
	if err != nil {
		return err
	}
	return p.withClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		counts, err := c.Count(ctx, filter, options...)
		var missing *wiggle.PartialError
		if err != nil && !errors.As(err, &missing) {
			return err
		}
		document := countJSON{
			Total: counts.Total, ByState: map[string]int64{}, ByShard: counts.ByShard, MissingShards: missingJSON(missing),
		}
		for state, n := range counts.ByState {
			document.ByState[state.String()] = n
		}
		if p.json() {
			return p.printJSON(document)
		}
		t := newTable(p.Out)
		for _, state := range slices.Sorted(maps.Keys(document.ByState)) {
			t.row(state, strconv.FormatInt(document.ByState[state], 10))
		}
		for _, shard := range slices.Sorted(maps.Keys(counts.ByShard)) {
			t.row(fmt.Sprintf("on shard %d", shard), strconv.FormatInt(counts.ByShard[shard], 10))
		}
		t.row("total", strconv.FormatInt(counts.Total, 10))
		t.flush()
		p.warnMissing(missing)
		return nil
	})
}
