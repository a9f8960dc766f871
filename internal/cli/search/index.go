package search

import (
	"cmp"
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

// facetsJSON is what `wiggle search facets -o json` prints.
type facetsJSON struct {
	Total      int64            `json:"total"`
	ByWorkflow map[string]int64 `json:"by_workflow"`
	ByState    map[string]int64 `json:"by_state"`
	// Estimated is true if so many match that the counts are extrapolated.
	Estimated     bool               `json:"estimated"`
	MissingShards []shell.ShardError `json:"missing_shards,omitempty"`
}

func (p *program) facets(cmd *cobra.Command, words string, f searchFlags) error {
	filter, options, err := f.search(p, cmd)
	if err != nil {
		return err
	}
	return p.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		facets, err := c.SearchFacets(ctx, words, filter, options...)
		var missing *wiggle.PartialError
		if err != nil && !errors.As(err, &missing) {
			return err
		}
		document := facetsJSON{
			Total: facets.Total, ByWorkflow: facets.ByWorkflow, ByState: map[string]int64{}, Estimated: facets.Estimated,
			MissingShards: shell.MissingShards(missing),
		}
		for state, n := range facets.ByState {
			document.ByState[state.String()] = n
		}
		if p.JSON() {
			return p.PrintJSON(document)
		}
		t := p.Table()
		names := slices.SortedFunc(maps.Keys(facets.ByWorkflow), func(a, b string) int {
			return cmp.Or(cmp.Compare(facets.ByWorkflow[b], facets.ByWorkflow[a]), cmp.Compare(a, b))
		})
		for _, name := range names {
			t.Row("workflow "+name, strconv.FormatInt(facets.ByWorkflow[name], 10))
		}
		for _, state := range slices.Sorted(maps.Keys(document.ByState)) {
			t.Row(state, strconv.FormatInt(document.ByState[state], 10))
		}
		t.Row("total", strconv.FormatInt(facets.Total, 10))
		t.Flush()
		if facets.Estimated {
			_, _ = fmt.Fprintln(p.Err(), "so many match that these are estimates, to within a few percent")
		}
		shell.WarnMissing(p.Err(), missing)
		return nil
	})
}

func newIndexStatus(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show how far the search index is", Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
				status, err := c.IndexStatus(ctx)
				var missing *wiggle.PartialError
				if err != nil && !errors.As(err, &missing) {
					return err
				}
				return p.printStatus(status, missing)
			})
		},
	}
}

// statusJSON is what `wiggle search status -o json` prints.
type statusJSON struct {
	Documents int64 `json:"documents"`
	// Pending is -1 if it is not known.
	Pending          int64              `json:"pending"`
	LastDelaySeconds float64            `json:"last_delay_seconds"`
	DelayP99Seconds  float64            `json:"delay_p99_seconds"`
	MissingShards    []shell.ShardError `json:"missing_shards,omitempty"`
}

func (p *program) printStatus(status wiggle.IndexStatus, missing *wiggle.PartialError) error {
	if p.JSON() {
		return p.PrintJSON(statusJSON{
			status.Documents, status.Pending, status.LastDelay.Seconds(), status.DelayP99.Seconds(), shell.MissingShards(missing),
		})
	}
	pending := strconv.FormatInt(status.Pending, 10)
	if status.Pending < 0 {
		pending = "not known: NATS does not answer"
	}
	t := p.Table()
	t.Row("documents", strconv.FormatInt(status.Documents, 10))
	t.Row("events that wait", pending)
	t.Row("last delay", status.LastDelay.Round(time.Millisecond).String())
	t.Row("delay, 99 of 100", status.DelayP99.Round(time.Millisecond).String())
	t.Flush()
	shell.WarnMissing(p.Err(), missing)
	return nil
}

func newReindex(p *program) *cobra.Command {
	var opts wiggle.ReindexOptions
	cmd := &cobra.Command{
		Use:   "reindex",
		Short: "Build the search index again from the instances",
		Long: `Read every instance and bring the search index up to it, at a bounded rate. What is in the
index already stays as it is, so it may run at any time, and again. Without --namespace: of all
namespaces. Where it is broken off, it says how to go on.`,
		Example: `  wiggle search reindex
  wiggle search reindex --namespace shop --workflow order-fulfilment --rate 200
  wiggle search reindex --resume "$TEXT"`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.reindex(cmd, opts) },
	}
	cmd.Flags().StringVar(&opts.Workflow, "workflow", "", "only instances of this workflow")
	cmd.Flags().IntVar(&opts.Rate, "rate", 0, "how many instances to read in a second at most (0: 1000)")
	cmd.Flags().StringVar(&opts.Resume, "resume", "", "go on where another reindex was: the `text` that it said")
	return cmd
}

// reindexJSON is what `wiggle search reindex -o json` prints.
type reindexJSON struct {
	Read    int64 `json:"read"`
	Written int64 `json:"written"`
}

func (p *program) reindex(cmd *cobra.Command, opts wiggle.ReindexOptions) error {
	return p.WithClientFor(cmd, func(ctx context.Context, c *wiggle.Client) error {
		opts.AllNamespaces = p.Namespace() == ""
		bar, began := p.NewBar(), p.Now()
		var last wiggle.ReindexProgress
		for progress, err := range c.Reindex(ctx, opts) {
			if err != nil {
				bar.Close()
				if last.Resume != "" {
					_, _ = fmt.Fprintf(p.Err(), "to go on from here, repeat the command with --resume %s\n", last.Resume)
				}
				return err
			}
			last = progress
			bar.Tell(p.far(began, progress.Read, progress.Total),
				fmt.Sprintf("%d of about %d instances, %d documents written", progress.Read, progress.Total, progress.Written))
		}
		bar.Close()
		if p.JSON() {
			return p.PrintJSON(reindexJSON{last.Read, last.Written})
		}
		p.printf("read %d instances, wrote %d documents\n", last.Read, last.Written)
		return nil
	})
}

func newVerify(p *program) *cobra.Command {
	var opts wiggle.VerifyOptions
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the search index with the instances",
		Long: `Compare the search index with the instances and tell where they differ: instances that are not
in it, documents that are older than their instance, documents without an instance. Without
--namespace: of all namespaces. What changed a few seconds ago is left to the indexer.

It ends with exit code 1 if something differs and was not mended.`,
		Example: `  wiggle search verify
  wiggle search verify --workflow order-fulfilment --repair
  wiggle search verify -o json | jq '.missing + .stale + .orphaned'`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.verify(cmd, opts) },
	}
	cmd.Flags().StringVar(&opts.Workflow, "workflow", "", "only instances of this workflow")
	cmd.Flags().BoolVar(&opts.Repair, "repair", false, "mend what differs")
	return cmd
}

// verifyJSON is what `wiggle search verify -o json` prints.
type verifyJSON struct {
	Compared int64    `json:"compared"`
	Missing  int64    `json:"missing"`
	Stale    int64    `json:"stale"`
	Orphaned int64    `json:"orphaned"`
	Repaired int64    `json:"repaired"`
	Examples []string `json:"examples"`
}

func (p *program) verify(cmd *cobra.Command, opts wiggle.VerifyOptions) error {
	return p.WithClientFor(cmd, func(ctx context.Context, c *wiggle.Client) error {
		opts.AllNamespaces = p.Namespace() == ""
		bar, began := p.NewBar(), p.Now()
		var last wiggle.VerifyProgress
		for progress, err := range c.VerifyIndex(ctx, opts) {
			if err != nil {
				bar.Close()
				return err
			}
			last = progress
			bar.Tell(p.far(began, progress.Compared, progress.Total),
				fmt.Sprintf("%d of about %d instances, %d differ", progress.Compared, progress.Total,
					progress.Missing+progress.Stale+progress.Orphaned))
		}
		bar.Close()
		return p.printVerified(last)
	})
}

func (p *program) printVerified(v wiggle.VerifyProgress) error {
	if p.JSON() {
		document := verifyJSON{v.Compared, v.Missing, v.Stale, v.Orphaned, v.Repaired, append([]string{}, v.Examples...)}
		if err := p.PrintJSON(document); err != nil {
			return err
		}
	} else {
		p.printf("compared %d instances: %d missing, %d stale, %d orphaned, %d repaired\n",
			v.Compared, v.Missing, v.Stale, v.Orphaned, v.Repaired)
		for _, id := range v.Examples {
			p.printf("  %s\n", id)
		}
	}
	if left := v.Missing + v.Stale + v.Orphaned - v.Repaired; left > 0 {
		return &shell.Failure{
			Exit: shell.ExitFailure, Kind: "index_differs",
			Message: fmt.Sprintf("%d differ and were not mended", left), Hint: "use --repair",
		}
	}
	return nil
}

// far is how far something is, for a bar.
func (p *program) far(began time.Time, done, total int64) shell.Progress {
	return shell.Progress{Done: int(done), Started: int(done), Total: int(max(done, total)), Elapsed: p.Now().Sub(began)}
}
