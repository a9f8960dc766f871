package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

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
	var f shell.FilterFlags
	limit, all := defaultLimit, false
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List instances, newest first",
		Example: `  wiggle list --state failed --since 24h
  wiggle list --workflow order-fulfilment --all -o json | jq -r '.instances[].id'`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return shell.Usage(cmd, fmt.Errorf("--limit %d: use 1 or more, or --all", limit))
			}
			if all {
				limit = 0
			}
			return p.list(cmd, f, limit)
		},
	}
	f.Add(cmd)
	cmd.Flags().IntVar(&limit, "limit", limit, "how many to list at most")
	cmd.Flags().BoolVar(&all, "all", false, "list all there are")
	return cmd
}

// listJSON is what `wiggle list -o json` prints.
type listJSON struct {
	Instances []instanceJSON `json:"instances"`
	// More is true if the limit left some out.
	More          bool               `json:"more"`
	MissingShards []shell.ShardError `json:"missing_shards,omitempty"`
}

func (p *Program) list(cmd *cobra.Command, f shell.FilterFlags, limit int) error {
	filter, options, err := f.Filter(p.shell(), cmd)
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
		document := listJSON{Instances: []instanceJSON{}, More: more, MissingShards: shell.MissingShards(missing)}
		for _, i := range found {
			document.Instances = append(document.Instances, toInstanceJSON(i))
		}
		return p.printJSON(document)
	}
	if len(found) == 0 {
		p.printf("no instances\n")
	} else {
		t := shell.NewTable(p.Out, "ID", "WORKFLOW", "VERSION", "STATE", "STARTED", "TOOK")
		for _, i := range found {
			t.Row(i.ID, i.Workflow, strconv.Itoa(i.Version), i.State.String(), p.when(i.CreatedAt), p.took(i))
		}
		t.Flush()
	}
	if more {
		_, _ = fmt.Fprintf(p.Err, "the newest %d; there are more: use --limit or --all\n", len(found))
	}
	shell.WarnMissing(p.Err, missing)
	return nil
}

func newCount(p *Program) *cobra.Command {
	var f shell.FilterFlags
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count instances, by state and by shard",
		Example: `  wiggle count --workflow order-fulfilment --since 1h
  wiggle count --state running -o json | jq .total`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.count(cmd, f) },
	}
	f.Add(cmd)
	return cmd
}

// countJSON is what `wiggle count -o json` prints.
type countJSON struct {
	Total         int64              `json:"total"`
	ByState       map[string]int64   `json:"by_state"`
	ByShard       map[int]int64      `json:"by_shard"`
	MissingShards []shell.ShardError `json:"missing_shards,omitempty"`
}

func (p *Program) count(cmd *cobra.Command, f shell.FilterFlags) error {
	filter, options, err := f.Filter(p.shell(), cmd)
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
			Total: counts.Total, ByState: map[string]int64{}, ByShard: counts.ByShard, MissingShards: shell.MissingShards(missing),
		}
		for state, n := range counts.ByState {
			document.ByState[state.String()] = n
		}
		if p.json() {
			return p.printJSON(document)
		}
		t := shell.NewTable(p.Out)
		for _, state := range slices.Sorted(maps.Keys(document.ByState)) {
			t.Row(state, strconv.FormatInt(document.ByState[state], 10))
		}
		for _, shard := range slices.Sorted(maps.Keys(counts.ByShard)) {
			t.Row(fmt.Sprintf("on shard %d", shard), strconv.FormatInt(counts.ByShard[shard], 10))
		}
		t.Row("total", strconv.FormatInt(counts.Total, 10))
		t.Flush()
		shell.WarnMissing(p.Err, missing)
		return nil
	})
}
