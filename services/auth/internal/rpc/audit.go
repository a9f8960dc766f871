package rpc

import (
	"context"
	"strconv"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/authstore"
)

const auditList = "audit"

// ListAuditEntries implements wigglev1connect.AuditServiceHandler. A page token is the number of the last entry, so pages
// neither repeat nor leave out an entry, whatever is appended meanwhile.
func (s *Server) ListAuditEntries(
	ctx context.Context, req *wigglev1.ListAuditEntriesRequest,
) (*wigglev1.ListAuditEntriesResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	before, err := auditStart(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	filter := authstore.Filter{
		Principal: req.GetFilter().GetPrincipal(), Target: req.GetFilter().GetTarget(), Action: req.GetFilter().GetAction(),
		Denied: req.GetFilter().GetDenied(), Text: req.GetFilter().GetText(),
	}
	if from := req.GetFilter().GetFrom(); from != nil {
		filter.From = from.AsTime()
	}
	if until := req.GetFilter().GetBefore(); until != nil {
		filter.Until = until.AsTime()
	}
	size := pageSize(req.GetPageSize())
	entries, err := s.store.Entries(ctx, filter, before, size+1)
	if err != nil {
		return nil, s.fault(err)
	}
	res := &wigglev1.ListAuditEntriesResponse{}
	if len(entries) > size {
		entries = entries[:size]
		res.NextPageToken = pageToken(auditList, strconv.FormatInt(entries[size-1].Seq, 10))
	}
	for _, e := range entries {
		res.Entries = append(res.Entries, wireEntry(e))
	}
	return res, nil
}

func auditStart(token string) (before int64, err error) {
	text, err := pageStart(auditList, token)
	if err != nil || text == "" {
		return 0, err
	}
	before, err = strconv.ParseInt(text, 10, 64)
	if err != nil || before <= 0 {
		return 0, faults.InvalidArgument("malformed page token %.60q: use the next_page_token of the page before", token)
	}
	return before, nil
}
