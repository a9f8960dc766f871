package accounts_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/cli"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// auditLog is one that grows while it is read.
type auditLog struct {
	mu      sync.Mutex
	entries int64 // numbered from 1
	looks   int
	froms   []time.Time
	// grow tells how many entries are added before the look of a number is answered, or that it fails.
	grow map[int]int64
	fail map[int]error
}

// list answers in pages of two at most, as a log that has much.
func (l *auditLog) list(req *wigglev1.ListAuditEntriesRequest) (*wigglev1.ListAuditEntriesResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var before int64
	if req.GetPageToken() == "" {
		l.looks++
		l.entries += l.grow[l.looks]
		l.froms = append(l.froms, req.GetFilter().GetFrom().AsTime())
		if err := l.fail[l.looks]; err != nil {
			return nil, err
		}
		before = l.entries + 1
	} else {
		var err error
		if before, err = strconv.ParseInt(req.GetPageToken(), 10, 64); err != nil {
			return nil, err
		}
	}
	res := &wigglev1.ListAuditEntriesResponse{}
	for seq := before - 1; seq > 0; seq-- {
		if len(res.GetEntries()) == min(2, int(req.GetPageSize())) {
			res.NextPageToken = strconv.FormatInt(seq+1, 10)
			break
		}
		res.Entries = append(res.Entries, &wigglev1.AuditEntry{
			Seq: seq, At: at(float64(seq)), Principal: "user/alice", Action: "a.b", Target: fmt.Sprintf("n%d", seq), Allowed: true,
		})
	}
	return res, nil
}

// closing is an output that ends the command when so many lines were written.
type closing struct {
	text  strings.Builder
	lines int
	stop  context.CancelFunc
}

func (c *closing) Write(p []byte) (int, error) {
	n, err := c.text.Write(p)
	if strings.Count(c.text.String(), "\n") >= c.lines {
		c.stop()
	}
	return n, err
}

// AUT-8: following shows each entry that is written once, in order, over pages, pauses and a server that is away, until Ctrl-C.
func TestAuditFollow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"from now on":  {nil, []string{"n4", "n5", "n6", "n7", "n8", "n9"}},
		"from a time":  {[]string{"--since", "3h"}, []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"}},
		"behind one":   {[]string{"--from", "2"}, []string{"n3", "n4", "n5", "n6", "n7", "n8", "n9"}},
		"one document": {[]string{"-o", "json"}, []string{"n4", "n5", "n6", "n7", "n8", "n9"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAuth(t)
			away := faults.Unavailable(0, "the auth service is away")
			log := &auditLog{entries: 3, grow: map[int]int64{2: 5, 5: 1}, fail: map[int]error{3: away, 4: away}}
			f.log = log.list
			ctx, stop := context.WithCancel(t.Context())
			out, errs := &closing{lines: len(c.want), stop: stop}, &strings.Builder{}
			p := &cli.Program{
				Out: out, Err: errs, Environ: []string{"WIGGLE_SERVER=" + f.URL, "WIGGLE_API_KEY=" + apiKey}, Location: time.UTC,
				Now: func() time.Time { return now },
			}
			if code := cli.Run(ctx, p, append([]string{"audit", "--follow"}, c.args...)); code != shell.ExitOK {
				t.Errorf("exit code %d: %s", code, errs)
			}
			var got []string
			for line := range strings.Lines(out.text.String()) {
				var entry struct{ Target string }
				if !slices.Contains(c.args, "json") {
					entry.Target = strings.Fields(line)[6]
				} else if err := json.Unmarshal([]byte(line), &entry); err != nil {
					t.Error(err)
				}
				got = append(got, entry.Target)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("shown are %v, want %v", got, c.want)
			}
			if text := errs.String(); strings.Count(text, "is away; it is tried again") != 1 || strings.Count(text, "can be read again") != 1 {
				t.Errorf("said beside it: %q", text)
			}
			if last := log.froms[len(log.froms)-1]; !last.Equal(at(8).AsTime()) {
				t.Errorf("the last look is for all since %v", last)
			}
		})
	}
}

// What does not pass ends it, and so does a server that is away from the beginning.
func TestAuditFollowFails(t *testing.T) {
	t.Parallel()
	denied := faults.PermissionDenied("audit.read", "key/ci")
	for name, c := range map[string]struct {
		args []string
		fail map[int]error
		code int
	}{
		"denied":           {nil, map[int]error{1: denied}, shell.ExitDenied},
		"denied later":     {nil, map[int]error{3: denied}, shell.ExitDenied},
		"away at first":    {nil, map[int]error{1: faults.Unavailable(0, "away")}, shell.ExitUnavailable},
		"away from a time": {[]string{"--since", "1h"}, map[int]error{1: faults.Unavailable(0, "away")}, shell.ExitUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAuth(t)
			f.log = (&auditLog{entries: 3, fail: c.fail}).list
			u := &user{t: t, url: f.URL, environ: []string{"WIGGLE_API_KEY=" + apiKey}}
			if r := u.wiggle(append([]string{"audit", "--follow"}, c.args...)...); r.code != c.code || r.err == "" {
				t.Errorf("%+v", r)
			}
		})
	}
}
