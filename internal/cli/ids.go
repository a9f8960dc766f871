package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/shardid"
)

func newIDs(p *Program) *cobra.Command {
	cmd := shell.Family(&cobra.Command{Use: "ids", Short: "Look into ids"})
	cmd.AddCommand(&cobra.Command{
		Use:   "parse ID...",
		Short: "Say what ids name: kind, shard, and when they were minted",
		Long: `Say what ids name. The shard of an id stands in it, so no server is asked.

Ids from before sharding, and those of the removed coordinator, live on the home shard.`,
		Example: `  wiggle ids parse wfi.s3.01k6zqk3v8r5d1f0m9c2x7y4ab tok_01k6zqk3v8r5d1f0m9c2x7y4ab`,
		Args:    shell.Args(1, -1, "an ID"),
		RunE:    func(_ *cobra.Command, args []string) error { return p.parseIDs(args) },
	})
	return cmd
}

// idJSON is what `wiggle ids parse -o json` says about an id.
type idJSON struct {
	ID    string `json:"id"`
	Valid bool   `json:"valid"`
	Kind  string `json:"kind,omitempty"`
	// Form is sharded or legacy.
	Form string `json:"form,omitempty"`
	// Shard is absent for legacy ids, which live on the home shard.
	Shard    *int       `json:"shard,omitempty"`
	Home     bool       `json:"home,omitempty"`
	ULID     string     `json:"ulid,omitempty"`
	MintedAt *time.Time `json:"minted_at,omitempty"`
	Error    string     `json:"error,omitempty"`
}

func parseID(text string) idJSON {
	id, err := shardid.Parse(text)
	if err != nil {
		return idJSON{ID: text, Error: err.Error()}
	}
	out := idJSON{ID: text, Valid: true, Kind: id.Kind().String(), Form: "sharded", Home: id.Home()}
	if id.IsLegacy() {
		out.Form = "legacy"
	} else {
		shard := id.Shard()
		out.Shard = &shard
	}
	if u, ok := id.ULID(); ok {
		out.ULID, out.MintedAt = u.String(), shell.TimeJSON(ulid.Time(u.Time()))
	}
	return out
}

func (p *Program) parseIDs(args []string) error {
	bad := 0
	ids := make([]idJSON, len(args))
	for i, text := range args {
		if ids[i] = parseID(text); !ids[i].Valid {
			bad++
		}
	}
	if p.json() {
		if err := p.printJSON(map[string]any{"ids": ids}); err != nil {
			return err
		}
	} else {
		p.printIDs(ids)
	}
	if bad > 0 {
		return &shell.Failure{Exit: shell.ExitFailure, Kind: "invalid", Message: fmt.Sprintf("%d of %d ids are not valid", bad, len(ids))}
	}
	return nil
}

func (p *Program) printIDs(ids []idJSON) {
	t := shell.NewTable(p.Out, "ID", "KIND", "FORM", "SHARD", "MINTED")
	for _, id := range ids {
		switch {
		case !id.Valid:
			t.Row(strconv.Quote(id.ID), "-", "-", "-", id.Error)
		case id.Home:
			t.Row(id.ID, id.Kind, id.Form, "home", p.minted(id))
		default:
			t.Row(id.ID, id.Kind, id.Form, strconv.Itoa(*id.Shard), p.minted(id))
		}
	}
	t.Flush()
}

func (p *Program) minted(id idJSON) string {
	if id.MintedAt == nil {
		return "-"
	}
	return id.MintedAt.In(p.Location).Format("2006-01-02 15:04:05.000")
}
