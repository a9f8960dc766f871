// Package events is the family of commands `wiggle events`: following the event log, and who follows it.
package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// program is the shell with what these commands print by.
type program struct{ *shell.Shell }

// New makes the commands.
func New(sh *shell.Shell) *cobra.Command {
	p := &program{sh}
	cmd := shell.Family(&cobra.Command{Use: "events", Short: "Follow the event log, and see who does"})
	cmd.AddCommand(newTail(p), newConsumers(p))
	return cmd
}

// tail is what `wiggle events tail` was asked for.
type tail struct {
	from, consumer   string
	workflows, types []string
	partial          bool
	limit            int
}

func newTail(p *program) *cobra.Command {
	var t tail
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Follow the event log of all shards",
		Long: `Follow the event log of all shards: what became of instances, and what handlers emitted.

Events come in order for each instance, and by time over the shards; none is left out. Without
--consumer nothing is kept, and it begins with what is written from now on, with the earliest
event that is kept (--from earliest), or behind a cursor (-o json shows each event's).

With --consumer NAME the shards keep how far NAME is: what was printed is acknowledged once a
second and at the end, and the next who follows as NAME goes on there. A consumer that is new
begins where --from says. The log is kept for it, up to the hard cap of the retention, until
wiggle events consumers delete NAME.

With -o json each event is one line. Ctrl-C ends it.`,
		Example: `  wiggle events tail
  wiggle events tail --from earliest --type 'order.*' --type wf.failed
  wiggle events tail --consumer billing --workflow order-fulfilment -o json | ./bill`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.limit < 0 {
				return shell.Usage(cmd, fmt.Errorf("--limit %d: use 1 or more, or 0 for no end", t.limit))
			}
			return p.WithClientFor(cmd, func(ctx context.Context, c *wiggle.Client) error { return t.follow(ctx, p, c) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&t.from, "from", "", "where to begin: tail, earliest, or a `cursor` (default tail)")
	flags.StringVar(&t.consumer, "consumer", "", "`name` for which the shards keep how far it is")
	flags.StringSliceVar(&t.workflows, "workflow", nil, "only those of these workflows")
	flags.StringSliceVar(&t.types, "type", nil, "only those of these types; 'order.*' is all that begin so")
	flags.BoolVar(&t.partial, "partial", false, "go on with the other shards when one does not answer, and name it")
	flags.IntVar(&t.limit, "limit", 0, "end after so many events")
	return cmd
}

// ackEvery is how often what was printed is acknowledged, and ackTime how long that may take at the end.
const (
	ackEvery = time.Second
	ackTime  = 5 * time.Second
)

func (t *tail) options() wiggle.EventOptions {
	opts := wiggle.EventOptions{Workflows: t.workflows, Types: t.types, AllowPartial: t.partial}
	switch t.from {
	case "":
	case "tail":
		opts.Start = wiggle.FromTail
	case "earliest":
		opts.Start = wiggle.FromEarliest
	default:
		opts.After = t.from
	}
	return opts
}

// follow prints events until ctx is done, which is a good end.
func (t *tail) follow(ctx context.Context, p *program, c *wiggle.Client) (err error) {
	last, acked, ackedAt := "", "", time.Now()
	defer func() {
		if t.consumer != "" && last != acked {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTime)
			defer cancel()
			err = errors.Join(err, c.AckEvents(ctx, t.consumer, last))
		}
	}()
	printed := 0
	for e, err := range c.Events(ctx, t.consumer, t.options()) {
		if missing, ok := errors.AsType[*wiggle.PartialError](err); ok {
			_, _ = fmt.Fprintf(p.Err(), "%v\n", missing)
			continue
		}
		if err != nil {
			return err
		}
		if err := p.print(e); err != nil {
			return err
		}
		last = e.Cursor
		if t.consumer != "" && time.Since(ackedAt) >= ackEvery {
			if err := c.AckEvents(ctx, t.consumer, last); err != nil && ctx.Err() == nil {
				return err
			}
			acked, ackedAt = last, time.Now()
		}
		if printed++; printed == t.limit {
			break
		}
	}
	return nil
}

// eventJSON is a line of `wiggle events tail -o json`.
type eventJSON struct {
	Cursor     string          `json:"cursor"`
	Shard      int             `json:"shard"`
	Seq        int64           `json:"seq"`
	Time       time.Time       `json:"time"`
	Type       string          `json:"type"`
	InstanceID string          `json:"instance_id"`
	Namespace  string          `json:"namespace"`
	Workflow   string          `json:"workflow"`
	Version    int             `json:"version"`
	Key        string          `json:"key,omitempty"`
	Node       string          `json:"node,omitempty"`
	Revision   int             `json:"revision"`
	Payload    json.RawMessage `json:"payload,omitempty"`
}

func (p *program) print(e *wiggle.Event) error {
	payload := e.Payload().Data
	if !p.JSON() {
		_, err := fmt.Fprintln(p.Out(), p.line(e, payload))
		return err
	}
	line := eventJSON{
		Cursor: e.Cursor, Shard: e.Shard, Seq: e.Seq, Time: e.Time.UTC(), Type: e.Type, InstanceID: e.InstanceID, Namespace: e.Namespace,
		Workflow: e.Workflow, Version: e.Version, Key: e.Key, Node: e.Node, Revision: e.Revision, Payload: payload,
	}
	if err := p.PrintJSONLine(line); err != nil {
		return fmt.Errorf("event %d of shard %d: %w", e.Seq, e.Shard, err)
	}
	return nil
}

// line is an event for people.
func (p *program) line(e *wiggle.Event, payload []byte) string {
	text := fmt.Sprintf("%s  %-12s  %s  %s v%d", p.When(e.Time), e.Type, e.InstanceID, e.Workflow, e.Version)
	if e.Node != "" {
		text += "  " + e.Node
	}
	var compact bytes.Buffer
	if len(payload) > 0 && json.Compact(&compact, payload) == nil && compact.String() != "{}" {
		text += "  " + compact.String()
	}
	return text
}

func newConsumers(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "consumers [delete NAME]",
		Short: "Show how far consumers of events are, or forget one",
		Long: `Show how far each consumer of the event log is, on each shard: the number of the last event
that it has acknowledged, and about how many follow. wiggle.relay is what brings the log to
NATS; it cannot be deleted.

The log is kept for a consumer that falls behind, up to the hard cap of the retention. One that
will not come back is forgotten with delete. It may be used again: then it is new.`,
		Example: `  wiggle events consumers
  wiggle events consumers delete billing`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && args[0] != "delete":
				return shell.Usage(cmd, fmt.Errorf("consumers: there is no %q; use delete NAME, or nothing to list them", args[0]))
			case len(args) == 1:
				return shell.Usage(cmd, errors.New("consumers delete: missing the NAME of a consumer"))
			}
			return shell.Args(0, 2, "")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
				if len(args) > 0 {
					return p.forget(ctx, c, args[1])
				}
				return p.consumers(ctx, c)
			})
		},
	}
}

func (p *program) forget(ctx context.Context, c *wiggle.Client, name string) error {
	if err := c.DeleteEventConsumer(ctx, name); err != nil {
		return err
	}
	if p.JSON() {
		return p.PrintJSON(map[string]string{"deleted": name})
	}
	_, err := fmt.Fprintf(p.Out(), "%s is forgotten\n", name)
	return err
}

type positionJSON struct {
	Shard   int       `json:"shard"`
	Seq     int64     `json:"seq"`
	Behind  int64     `json:"behind"`
	AckedAt time.Time `json:"acked_at"`
}

type consumerJSON struct {
	Name      string         `json:"name"`
	Positions []positionJSON `json:"positions"`
}

func (p *program) consumers(ctx context.Context, c *wiggle.Client) error {
	list, err := c.EventConsumers(ctx)
	if err != nil {
		return err
	}
	if p.JSON() {
		found := make([]consumerJSON, 0, len(list))
		for _, one := range list {
			out := consumerJSON{Name: one.Name}
			for _, at := range one.Positions {
				out.Positions = append(out.Positions, positionJSON{at.Shard, at.Seq, at.Behind, at.AckedAt.UTC()})
			}
			found = append(found, out)
		}
		return p.PrintJSON(map[string]any{"consumers": found})
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(p.Out(), "no consumers: follow as one with wiggle events tail --consumer NAME")
		return err
	}
	t := p.Table("CONSUMER", "SHARD", "ACKNOWLEDGED", "BEHIND", "AT")
	for _, one := range list {
		for _, at := range one.Positions {
			t.Row(one.Name, strconv.Itoa(at.Shard), strconv.FormatInt(at.Seq, 10), strconv.FormatInt(at.Behind, 10), p.When(at.AckedAt))
		}
	}
	t.Flush()
	return nil
}
