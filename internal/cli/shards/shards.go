// Package shards is the command `wiggle shards`: the shards of a cluster and their replicas, as tables for people and as a
// document for programs.
package shards

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/internal/cli/timeline"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// New makes the command.
func New(sh *shell.Shell) *cobra.Command {
	return &cobra.Command{
		Use:   "shards",
		Short: "Show the shards, who serves them, and how their replicas are",
		Long: `Show the shards of the topology, how many processes serve each, and how its replicas are,
as one of these processes sees them.

A replica is read from while it is serving. LAG is how old its newest heartbeat was when it
was asked last, REPLAYED how far it is in the log, READS what it has answered for that process.`,
		Example: `  wiggle shards
  wiggle shards -o json | jq '.shards[] | select(.ready | not)'`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return sh.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
				list, err := c.Shards(ctx)
				if err != nil {
					return err
				}
				if sh.JSON() {
					return sh.PrintJSON(documentOf(list))
				}
				show(sh, list)
				return nil
			})
		},
	}
}

// document is what `wiggle shards -o json` prints.
type document struct {
	Shards []shard `json:"shards"`
}

// shard is a shard in a document.
type shard struct {
	Shard     int       `json:"shard"`
	State     string    `json:"state"`
	Roles     []string  `json:"roles"`
	Ready     bool      `json:"ready"`
	Reason    string    `json:"reason,omitempty"`
	Processes int       `json:"processes"`
	Replicas  []replica `json:"replicas,omitempty"`
}

// replica is a replica in a document.
type replica struct {
	Index   int    `json:"index"`
	Zone    string `json:"zone,omitempty"`
	Serving bool   `json:"serving"`
	Reason  string `json:"reason,omitempty"`
	// LagSeconds is absent if it is not known.
	LagSeconds *float64   `json:"lag_seconds,omitempty"`
	Replayed   string     `json:"replayed,omitempty"`
	ProbedAt   *time.Time `json:"probed_at,omitempty"`
	Reads      int64      `json:"reads"`
}

func documentOf(list []wiggle.Shard) document {
	d := document{Shards: []shard{}}
	for _, s := range list {
		out := shard{s.Shard, s.State, s.Roles, s.Ready, s.Reason, s.Processes, nil}
		for _, r := range s.Replicas {
			one := replica{
				Index: r.Index, Zone: r.Zone, Serving: r.Serving, Reason: r.Reason, Replayed: r.Replayed,
				ProbedAt: shell.TimeJSON(r.ProbedAt), Reads: r.Reads,
			}
			if seconds := r.Lag.Seconds(); r.Lag >= 0 {
				one.LagSeconds = &seconds
			}
			out.Replicas = append(out.Replicas, one)
		}
		d.Shards = append(d.Shards, out)
	}
	return d
}

// show prints a table of the shards, and one of their replicas if there are any.
func show(sh *shell.Shell, list []wiggle.Shard) {
	t := sh.Table("SHARD", "STATE", "ROLES", "PROCESSES", "READY")
	replicas := 0
	for _, s := range list {
		t.Row(strconv.Itoa(s.Shard), s.State, strings.Join(s.Roles, ","), strconv.Itoa(s.Processes), readyText(s))
		replicas += len(s.Replicas)
	}
	t.Flush()
	if replicas == 0 {
		return
	}
	_, _ = fmt.Fprintln(sh.Out())
	t = sh.Table("SHARD", "REPLICA", "ZONE", "LAG", "REPLAYED", "READS", "SERVING")
	for _, s := range list {
		for _, r := range s.Replicas {
			t.Row(strconv.Itoa(s.Shard), strconv.Itoa(r.Index), orDash(r.Zone), lagText(r.Lag), orDash(r.Replayed),
				strconv.FormatInt(r.Reads, 10), yesOr(r.Serving, r.Reason))
		}
	}
	t.Flush()
}

// readyText tells whether a shard is ready. Only those with instances can be.
func readyText(s wiggle.Shard) string {
	if !s.Ready && s.Reason == "" {
		return "-"
	}
	return yesOr(s.Ready, s.Reason)
}

func yesOr(yes bool, reason string) string {
	if yes {
		return "yes"
	}
	return "no: " + reason
}

func lagText(lag time.Duration) string {
	if lag < 0 {
		return "-"
	}
	return timeline.Duration(lag)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
