package accounts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// followEvery is how often the log is looked at for what was added.
	followEvery = 500 * time.Millisecond
	// followTime bounds one look, after which a server counts as away; longestPause the pauses between tries then.
	followTime   = 15 * time.Second
	longestPause = 5 * time.Second
	// followPage is how many entries a look asks for first. Where there are more it goes on.
	followPage = 100
)

// follower reads what is appended to the audit log. Entries are numbered in the order in which they are committed, so what has
// a higher number than the last is new, and nothing is left out.
type follower struct {
	*program

	audit  services
	filter *wigglev1.AuditFilter
	// last is the number of the last entry that was shown, or behind which it began.
	last int64
	// left is how many to show yet; 0 for no end.
	left int
	// answered tells whether the server has ever: one that is away from the beginning is told as by any command.
	answered bool
}

// followAudit shows entries as they are written, until ctx is done, which is a good end.
func (p *program) followAudit(cmd *cobra.Command, f *auditFlags) error {
	switch {
	case f.all:
		return shell.Usage(cmd, errors.New("--follow and --all: use one of them; --follow --from earliest shows all and goes on"))
	case f.until != "":
		return shell.Usage(cmd, errors.New("--follow and --until: use one of them"))
	case f.from != "" && f.since != "":
		return shell.Usage(cmd, errors.New("--from and --since: use one of them"))
	case f.limit < 0:
		return shell.Usage(cmd, fmt.Errorf("--limit %d: use 1 or more, or 0 for no end", f.limit))
	}
	since, err := p.Instant(f.since)
	if err != nil {
		return shell.Usage(cmd, fmt.Errorf("--since: %w", err))
	}
	f.From = timestamp(since)
	w := &follower{program: p, filter: &f.AuditFilter}
	if cmd.Flags().Changed("limit") {
		w.left = f.limit
	}
	tail := false
	switch f.from {
	case "", "tail":
		tail = since.IsZero()
	case "earliest":
	default:
		if w.last, err = strconv.ParseInt(f.from, 10, 64); err != nil || w.last < 0 {
			return shell.Usage(cmd, fmt.Errorf("--from %q: use tail, earliest, or the number of an entry", f.from))
		}
	}
	return p.WithClientFor(cmd, func(ctx context.Context, c *wiggle.Client) error {
		w.audit = servicesOf(c)
		if tail {
			// Also says at once that there is no server, or no permission.
			newest, err := w.page(ctx, &wigglev1.ListAuditEntriesRequest{PageSize: 1})
			if err != nil {
				return unlessDone(ctx, err)
			}
			for _, e := range newest.GetEntries() {
				w.behind(e)
			}
			w.answered = true
		}
		return unlessDone(ctx, w.follow(ctx))
	})
}

// unlessDone is the error, or none if it was told to stop.
func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // as said
	}
	return err
}

func (w *follower) follow(ctx context.Context) error {
	for away, pause := false, followEvery; ; {
		entries, err := w.added(ctx)
		switch {
		case err == nil && away:
			w.tellf("wiggle: the audit log can be read again\n")
			away, pause = false, followEvery
		case err != nil && (!w.answered || ctx.Err() != nil || !isAway(err)):
			return err
		case err != nil:
			if !away {
				w.tellf("%v; it is tried again\n", err)
			}
			away, pause = true, min(2*pause, longestPause)
		}
		w.answered = true
		for _, e := range entries {
			if err := w.show(e); err != nil {
				return err
			}
			w.behind(e)
			if w.left--; w.left == 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// behind goes on behind an entry. Times do not go back either, so the server need not look at what is older.
func (w *follower) behind(e *wigglev1.AuditEntry) { w.last, w.filter.From = e.GetSeq(), e.GetAt() }

// isAway tells whether an error may be over in a moment.
func isAway(err error) bool {
	return errors.Is(err, wiggle.ErrUnavailable) || errors.Is(err, wiggle.ErrResourceExhausted) || errors.Is(err, context.DeadlineExceeded)
}

// added reads the entries behind the last one, oldest first.
func (w *follower) added(ctx context.Context) ([]*wigglev1.AuditEntry, error) {
	var entries []*wigglev1.AuditEntry
	req := &wigglev1.ListAuditEntriesRequest{Filter: w.filter, PageSize: followPage}
	for {
		res, err := w.page(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, e := range res.GetEntries() {
			if e.GetSeq() <= w.last {
				res.NextPageToken = ""
				break
			}
			entries = append(entries, e)
		}
		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
		req.PageSize = pageSize
	}
	slices.Reverse(entries)
	return entries, nil
}

func (w *follower) page(ctx context.Context, req *wigglev1.ListAuditEntriesRequest) (*wigglev1.ListAuditEntriesResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	res, err := w.audit.audit.ListAuditEntries(ctx, req)
	return res, wiggle.AsError("read the audit log", err)
}

// show prints an entry on a line.
func (w *follower) show(e *wigglev1.AuditEntry) error {
	if w.JSON() {
		return w.PrintJSONLine(toEntryJSON(e))
	}
	allowed := "denied "
	if e.GetAllowed() {
		allowed = "allowed"
	}
	_, err := fmt.Fprintf(w.Out(), "%s  %s  %s  %s  %s  %s  %s\n", w.when(e.GetAt()), allowed, orDash(e.GetPrincipal()),
		orDash(e.GetAddress()), orDash(e.GetAction()), orDash(e.GetTarget()), orDash(e.GetDetail()))
	return err
}
