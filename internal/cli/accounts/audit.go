package accounts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// defaultAudit is how many entries are shown.
const defaultAudit = 50

// auditFlags are those of `wiggle audit`.
type auditFlags struct {
	wigglev1.AuditFilter

	since, until string
	limit        int
	all, follow  bool
	from         string
}

func newAudit(p *program) *cobra.Command {
	f := &auditFlags{}
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who did what, newest first, and what was denied",
		Long: `Show the audit log, newest first: every call that was denied, and every action of an operator, with
who did it, from where, and on what. Conditions are joined by "and".

With --follow entries are shown as they are written, oldest first and none left out: from now on, with
--since from then on, with the earliest that is kept (--from earliest), or behind the entry of a
number (-o json shows each's seq). With -o json each entry is one line. A server that goes away is
waited for. Ctrl-C ends it.`,
		Example: `  wiggle audit --denied --since 24h
  wiggle audit --principal user/alice --action instance.
  wiggle audit --follow --denied
  wiggle audit --principal key/ci --since 2026-10-01 --all -o json | jq -r '.entries[].address' | sort | uniq -c`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.audit(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Principal, "principal", "", "only what this `one` did: user/alice, key/ci")
	flags.StringVar(&f.Action, "action", "", "only actions that begin with this `text`: instance.cancel, auth.")
	flags.StringVar(&f.Target, "target", "", "only what was done on this `thing`: an instance's id, a user's name, a namespace/workflow")
	flags.BoolVar(&f.Denied, "denied", false, "only what was denied")
	flags.StringVar(&f.since, "since", "", "only from this `time` on: 15m, 2h (ago), 2026-10-01 or 2026-10-01T09:00:00Z")
	flags.StringVar(&f.until, "until", "", "only before this `time`")
	flags.StringVar(&f.Text, "text", "", "only entries that have these `words`")
	flags.IntVarP(&f.limit, "limit", "n", defaultAudit, "how many to show at most")
	flags.BoolVar(&f.all, "all", false, "show all")
	flags.BoolVar(&f.follow, "follow", false, "show entries as they are written, until Ctrl-C, or until --limit have been shown")
	flags.StringVar(&f.from, "from", "", "where to begin with --follow: tail, earliest, or the `number` of an entry (default tail)")
	return cmd
}

func (p *program) audit(cmd *cobra.Command, f *auditFlags) error {
	if f.follow {
		return p.followAudit(cmd, f)
	}
	if f.from != "" {
		return shell.Usage(cmd, errors.New("--from: it says where --follow begins"))
	}
	if f.limit < 1 {
		return shell.Usage(cmd, fmt.Errorf("--limit %d: use 1 or more, or --all", f.limit))
	}
	limit := f.limit
	if f.all {
		limit = 0
	}
	since, err := p.Instant(f.since)
	if err != nil {
		return shell.Usage(cmd, fmt.Errorf("--since: %w", err))
	}
	until, err := p.Instant(f.until)
	if err != nil {
		return shell.Usage(cmd, fmt.Errorf("--until: %w", err))
	}
	f.From, f.Before = timestamp(since), timestamp(until)
	return p.with(cmd, func(ctx context.Context, s services) error {
		entries, err := gather(limit, func(size int32, token string) ([]*wigglev1.AuditEntry, string, error) {
			req := &wigglev1.ListAuditEntriesRequest{Filter: &f.AuditFilter, PageSize: size, PageToken: token}
			res, err := s.audit.ListAuditEntries(ctx, req)
			return res.GetEntries(), res.GetNextPageToken(), wiggle.AsError("read the audit log", err)
		})
		if err != nil {
			return err
		}
		more := limit > 0 && len(entries) > limit
		if more {
			entries = entries[:limit]
		}
		return p.printAudit(entries, more)
	})
}

// auditJSON is what `wiggle audit -o json` prints.
type auditJSON struct {
	Entries []entryJSON `json:"entries"`
	// More is true if older entries match too.
	More bool `json:"more"`
}

type entryJSON struct {
	Seq       int64      `json:"seq"`
	At        *time.Time `json:"at,omitempty"`
	Principal string     `json:"principal"`
	Address   string     `json:"address,omitempty"`
	Action    string     `json:"action"`
	Target    string     `json:"target,omitempty"`
	Allowed   bool       `json:"allowed"`
	Detail    string     `json:"detail,omitempty"`
	TraceID   string     `json:"trace_id,omitempty"`
}

func toEntryJSON(e *wigglev1.AuditEntry) entryJSON {
	return entryJSON{
		e.GetSeq(), timeJSON(e.GetAt()), e.GetPrincipal(), e.GetAddress(), e.GetAction(), e.GetTarget(), e.GetAllowed(), e.GetDetail(),
		e.GetTraceId(),
	}
}

func (p *program) printAudit(entries []*wigglev1.AuditEntry, more bool) error {
	if p.JSON() {
		d := auditJSON{Entries: make([]entryJSON, 0, len(entries)), More: more}
		for _, e := range entries {
			d.Entries = append(d.Entries, toEntryJSON(e))
		}
		return p.PrintJSON(d)
	}
	if len(entries) == 0 {
		p.printf("no entries\n")
		return nil
	}
	t := p.Table("AT", "WHO", "FROM", "ACTION", "ON", "ALLOWED", "DETAIL")
	for _, e := range entries {
		allowed := "no"
		if e.GetAllowed() {
			allowed = "yes"
		}
		t.Row(p.when(e.GetAt()), orDash(e.GetPrincipal()), orDash(e.GetAddress()), orDash(e.GetAction()),
			orDash(e.GetTarget()), allowed, orDash(e.GetDetail()))
	}
	t.Flush()
	if more {
		p.tellf("there are older ones: --limit shows more, --all all\n")
	}
	return nil
}
