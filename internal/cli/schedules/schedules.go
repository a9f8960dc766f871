// Package schedules is the family of commands `wiggle schedules`.
package schedules

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// program is the shell with what these commands print by.
type program struct{ *shell.Shell }

func (p *program) printf(format string, args ...any) { _, _ = fmt.Fprintf(p.Out(), format, args...) }

// New makes the commands.
func New(sh *shell.Shell) *cobra.Command {
	p := &program{sh}
	cmd := shell.Family(&cobra.Command{
		Use:   "schedules",
		Short: "Start instances by themselves, at times",
	})
	cmd.AddCommand(newPut(p), newGet(p), newList(p),
		newPause(p, true), newPause(p, false), newDelete(p))
	return cmd
}

func newPut(p *program) *cobra.Command {
	var f putFlags
	cmd := &cobra.Command{
		Use:   "put ID",
		Short: "Make a schedule, or change one",
		Long: `Make a schedule, or change the one with that id, and show its next due times. What has fired stays
fired; new times count from now on.

The times are those of a cron expression (minute, hour, day, month, weekday, with *,
ranges, lists, steps and names; or @hourly, @daily, @weekly, @monthly, @yearly) in a time zone, or
regular distances. Where the clock is set forward, times that it skips are due when it has moved on;
where it is set back, times that come twice are due the first time only.

A due time that comes while the instance before still runs is left out (skip), waits until that has
ended (queue_one), is started beside it (allow), or ends it (cancel_running). A due time that nobody
could fire is made up for within --catch-up; then it has been missed.

With -f the schedule is read from a file, as wiggle schedules get -o json prints it, in YAML or
JSON; flags go before what it says.`,
		Example: `  wiggle schedules put nightly --cron "30 2 * * mon-fri" --time-zone Europe/Berlin --workflow report
  wiggle schedules put poll --every 5m --jitter 30s --workflow poll --input '{"source":"a"}' --overlap queue_one
  wiggle schedules put nightly -f nightly.yaml`,
		Args: shell.Args(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error { return p.put(cmd, args, f) },
	}
	f.add(cmd)
	return cmd
}

func (p *program) put(cmd *cobra.Command, args []string, f putFlags) error {
	s, err := f.schedule(p, cmd, args)
	if err != nil {
		return err
	}
	return p.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		_, created, err := c.PutSchedule(ctx, s)
		if err != nil {
			return err
		}
		kept, err := c.GetSchedule(ctx, s.ID)
		if err != nil {
			return err
		}
		if p.JSON() {
			d := toDocument(kept)
			d.Created = &created
			return p.PrintJSON(d)
		}
		what := "put"
		if created {
			what = "created"
		}
		p.printf("schedule %s %s\n", s.ID, what)
		p.printUpcoming(kept)
		return nil
	})
}

func (p *program) printUpcoming(s *wiggle.KeptSchedule) {
	switch {
	case s.Paused:
		p.printf("paused: it does not fire\n")
	case len(s.Upcoming) == 0:
		p.printf("no due time is to come\n")
	default:
		p.printf("due at:\n")
		for _, t := range s.Upcoming {
			p.printf("  %s\n", p.dueAt(s, t))
		}
	}
}

// dueAt shows a due time, in the schedule's zone too if that is not the reader's.
func (p *program) dueAt(s *wiggle.KeptSchedule, t time.Time) string {
	text := p.When(t)
	zone, err := time.LoadLocation(s.TimeZone)
	if s.TimeZone == "" || err != nil || t.In(zone).Format(time.RFC3339) == t.In(p.Location()).Format(time.RFC3339) {
		return text
	}
	return text + "  (" + t.In(zone).Format("Mon 15:04:05 MST") + ")"
}

func newGet(p *program) *cobra.Command {
	return &cobra.Command{
		Use:     "get ID",
		Short:   "Show a schedule, what became of it, and its next due times",
		Example: `  wiggle schedules get nightly -o json > nightly.json`,
		Args:    shell.Args(1, 1, "the ID of a schedule"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
				s, err := c.GetSchedule(ctx, args[0])
				if err != nil {
					return err
				}
				if p.JSON() {
					return p.PrintJSON(toDocument(s))
				}
				p.print(s)
				return nil
			})
		},
	}
}

func (p *program) print(s *wiggle.KeptSchedule) {
	t := p.Table()
	row := func(name, value string) {
		if value != "" {
			t.Row(name, value)
		}
	}
	row("schedule", s.ID)
	row("workflow", s.Workflow+versionText(s.Version))
	row("when", whenText(s))
	row("jitter", durationText(s.Jitter))
	row("from", p.timeText(s.StartAt))
	row("until", p.timeText(s.EndAt))
	row("overlap", strings.ToLower(s.Overlap.String()))
	row("catch-up", durationText(s.CatchUp))
	if s.Priority != nil {
		row("priority", strconv.Itoa(*s.Priority))
	}
	row("fired", fmt.Sprintf("%d, skipped %d, missed %d", s.Fired, s.Skipped, s.Missed))
	if !s.LastAt.IsZero() {
		row("last", p.When(s.LastAt)+"  "+s.LastInstanceID)
	}
	row("queued", p.timeText(s.QueuedAt))
	row("problem", s.Problem)
	row("created", p.When(s.CreatedAt))
	row("changed", p.When(s.UpdatedAt))
	t.Flush()
	p.printUpcoming(s)
	if input, ok := s.Input.(wiggle.Payload); ok {
		p.printf("input:\n  %s\n", strings.ReplaceAll(p.PayloadText(input), "\n", "\n  "))
	}
}

func (p *program) timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return p.When(t)
}

func durationText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func versionText(version int) string {
	if version == 0 {
		return ""
	}
	return fmt.Sprintf(" version %d", version)
}

// whenText says the times of a schedule.
func whenText(s *wiggle.KeptSchedule) string {
	if s.Cron == "" {
		text := "every " + s.Every.String()
		if s.Offset != 0 {
			text += " at " + s.Offset.String()
		}
		return text
	}
	if s.TimeZone == "" {
		return s.Cron + " UTC"
	}
	return s.Cron + " " + s.TimeZone
}

func newList(p *program) *cobra.Command {
	workflow := ""
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List schedules",
		Example: `  wiggle schedules list --workflow report
  wiggle schedules list -o json | jq -r '.schedules[] | select(.problem) | .id'`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.list(cmd, workflow) },
	}
	cmd.Flags().StringVar(&workflow, "workflow", "", "only those that start this workflow")
	return cmd
}

func (p *program) list(cmd *cobra.Command, workflow string) error {
	return p.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		found := []document{}
		t := p.Table("ID", "WORKFLOW", "WHEN", "NEXT", "LAST", "FIRED", "SKIPPED", "MISSED", "PROBLEM")
		for s, err := range c.ListSchedules(ctx, workflow) {
			if err != nil {
				return err
			}
			found = append(found, toDocument(s))
			next := p.When(s.NextAt)
			if s.Paused {
				next = "paused"
			}
			problem := s.Problem
			if problem == "" {
				problem = "-"
			}
			t.Row(s.ID, s.Workflow, whenText(s), next, p.When(s.LastAt), strconv.FormatInt(s.Fired, 10),
				strconv.FormatInt(s.Skipped, 10), strconv.FormatInt(s.Missed, 10), problem)
		}
		switch {
		case p.JSON():
			return p.PrintJSON(map[string]any{"schedules": found})
		case len(found) == 0:
			p.printf("no schedules: make one with wiggle schedules put\n")
		default:
			t.Flush()
		}
		return nil
	})
}

func newPause(p *program, pause bool) *cobra.Command {
	name, short, done := "resume", "Let a schedule go on that was paused", "goes on"
	long := "Let a schedule go on. Times that passed while it was paused are not made up for."
	if pause {
		name, short, done = "pause", "Stop a schedule from firing", "paused"
		long = "Stop a schedule from firing until it is resumed. Instances that it started go on; a due time that\n" +
			"waits for one of them is left out."
	}
	return &cobra.Command{
		Use:     name + " ID",
		Short:   short,
		Long:    long,
		Example: "  wiggle schedules " + name + " nightly",
		Args:    shell.Args(1, 1, "the ID of a schedule"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
				status, err := c.PauseSchedule(ctx, args[0], pause)
				if err != nil {
					return err
				}
				if p.JSON() {
					return p.PrintJSON(pausedJSON{ID: args[0], Paused: pause, NextAt: shell.TimeJSON(status.NextAt)})
				}
				p.printf("schedule %s %s\n", args[0], done)
				if !status.NextAt.IsZero() {
					p.printf("due at:\n  %s\n", p.When(status.NextAt))
				}
				return nil
			})
		},
	}
}

type pausedJSON struct {
	ID     string     `json:"id"`
	Paused bool       `json:"paused"`
	NextAt *time.Time `json:"next_at,omitempty"`
}

func newDelete(p *program) *cobra.Command {
	return &cobra.Command{
		Use:     "delete ID",
		Short:   "Remove a schedule; instances that it started go on",
		Example: `  wiggle schedules delete nightly`,
		Args:    shell.Args(1, 1, "the ID of a schedule"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
				deleted, err := c.DeleteSchedule(ctx, args[0])
				if err != nil {
					return err
				}
				if p.JSON() {
					return p.PrintJSON(map[string]any{"id": args[0], "deleted": deleted})
				}
				if !deleted {
					p.printf("schedule %s does not exist\n", args[0])
					return nil
				}
				p.printf("schedule %s deleted\n", args[0])
				return nil
			})
		},
	}
}

var errNoID = errors.New("say which schedule: its ID, or a file with one")
