package rpc

import (
	"encoding/base64"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/authstore"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func wireAccount(a authstore.Account) *wigglev1.Account {
	return &wigglev1.Account{
		Name: a.Name, Roles: a.Roles, Disabled: a.Disabled, CreatedAt: stamp(a.CreatedAt), SignedInAt: stamp(a.SignedInAt),
	}
}

func wireSession(s authstore.Session, current string) *wigglev1.Session {
	return &wigglev1.Session{
		Id: s.ID, Account: s.Account, CreatedAt: stamp(s.CreatedAt), UsedAt: stamp(s.UsedAt), ExpiresAt: stamp(s.ExpiresAt),
		Address: s.Address, UserAgent: s.UserAgent, Current: s.ID == current,
	}
}

func wireSessions(sessions []authstore.Session, current string) []*wigglev1.Session {
	list := make([]*wigglev1.Session, len(sessions))
	for i, s := range sessions {
		list[i] = wireSession(s, current)
	}
	return list
}

func wireRole(r policy.Role) *wigglev1.Role {
	return &wigglev1.Role{Name: r.Name, Permissions: r.Permissions, Description: r.Description, BuiltIn: r.BuiltIn}
}

func wireKey(k authstore.Key, now time.Time) *wigglev1.Key {
	key := &wigglev1.Key{
		Id: k.ID, Name: k.Name, Roles: k.Roles, Permissions: k.Permissions, CreatedBy: k.CreatedBy, CreatedAt: stamp(k.CreatedAt),
		ExpiresAt: stamp(k.ExpiresAt), UsedAt: stamp(k.UsedAt), CertificateSubject: k.CertificateSubject,
	}
	if now.Before(k.OldSecretUntil) {
		key.OldSecretUntil = stamp(k.OldSecretUntil)
	}
	return key
}

func wireEntry(e authstore.Entry) *wigglev1.AuditEntry {
	return &wigglev1.AuditEntry{
		Seq: e.Seq, At: stamp(e.At), Principal: e.Principal, Address: e.Address, Action: e.Action, Target: e.Target, Allowed: e.Allowed,
		Detail: e.Detail, TraceId: e.TraceID,
	}
}

// pageSize is how many a page has.
func pageSize(asked int32) int {
	if asked <= 0 {
		return defaultPage
	}
	return min(int(asked), maxPage)
}

// A page token holds what was listed and the last of the page before.
func pageToken(list, last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(list + "/" + last))
}

func pageStart(list, token string) (after string, err error) {
	if token == "" {
		return "", nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if after, ok := strings.CutPrefix(string(b), list+"/"); err == nil && ok && after != "" {
		return after, nil
	}
	return "", faults.InvalidArgument("malformed page token %.60q: use the next_page_token of the page before", token)
}
