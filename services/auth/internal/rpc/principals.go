package rpc

import (
	"context"
	"errors"
	"log/slog"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/authstore"
	"github.com/wiggle-run/wiggle/services/auth/internal/credential"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// Authenticate implements wiggleinternalv1connect.PrincipalServiceHandler. It is one read of the primary, and at most once a
// minute for each credential a write. What is not valid, whatever the reason, is the same error.
func (s *Server) Authenticate(ctx context.Context, req *internalv1.AuthenticateRequest) (*internalv1.AuthenticateResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	p, err := s.find(ctx, req)
	switch {
	case errors.Is(err, authstore.ErrNotFound), errors.Is(err, credential.ErrMalformed):
		s.cfg.Metrics.authenticated(ctx, outcomeRefused)
		return nil, unauthenticated()
	case err != nil:
		s.cfg.Metrics.authenticated(ctx, outcomeFailed)
		return nil, s.fault(err)
	}
	if p.Disabled || policy.Over(p.Ends, p.Now) {
		s.cfg.Metrics.authenticated(ctx, outcomeRefused)
		return nil, unauthenticated()
	}
	if policy.Stale(p.UsedAt, p.Now) {
		// Whoever is authenticated is so even where the use cannot be recorded; a session then ends earlier.
		if err := s.store.Touch(ctx, p); err != nil {
			s.cfg.Logger.WarnContext(ctx, "the use of a credential could not be recorded",
				slog.String("credential", p.CredentialID), slog.Any("error", err))
		}
	}
	s.cfg.Metrics.authenticated(ctx, outcomeOK)
	s.cfg.Metrics.saw(p.Revision)
	return &internalv1.AuthenticateResponse{Principal: wirePrincipal(p), Revision: p.Revision}, nil
}

// find reads whose a credential is, and checks its secret.
func (s *Server) find(ctx context.Context, req *internalv1.AuthenticateRequest) (authstore.Principal, error) {
	if subject := req.GetCertificateSubject(); subject != "" {
		return s.store.CertificatePrincipal(ctx, subject)
	}
	c, err := credential.Parse(req.GetToken())
	if err != nil {
		return authstore.Principal{}, err
	}
	var p authstore.Principal
	switch c.Kind {
	case credential.Session:
		p, err = s.store.SessionPrincipal(ctx, c.ID)
	case credential.Key:
		p, err = s.store.KeyPrincipal(ctx, c.ID)
	default:
		err = authstore.ErrNotFound
	}
	if err != nil {
		return authstore.Principal{}, err
	}
	now := c.Matches(p.Secret)
	before := c.Matches(p.OldSecret) && p.Now.Before(p.OldSecretUntil)
	if !now && !before {
		return authstore.Principal{}, authstore.ErrNotFound
	}
	if !now && (p.Ends.IsZero() || p.OldSecretUntil.Before(p.Ends)) {
		p.Ends = p.OldSecretUntil // a cache must not keep the old secret past its time
	}
	return p, nil
}

func wirePrincipal(p authstore.Principal) *internalv1.Principal {
	kind := internalv1.PrincipalKind_PRINCIPAL_KIND_USER
	if p.Key {
		kind = internalv1.PrincipalKind_PRINCIPAL_KIND_KEY
	}
	return &internalv1.Principal{
		Kind: kind, Name: p.Name, CredentialId: p.CredentialID, Roles: p.Roles, Permissions: p.Permissions, ExpiresAt: stamp(p.Ends),
	}
}

// ListChanges implements wiggleinternalv1connect.PrincipalServiceHandler.
func (s *Server) ListChanges(ctx context.Context, req *internalv1.ListChangesRequest) (*internalv1.ListChangesResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	changes, err := s.store.ChangesAfter(ctx, req.GetAfter())
	if err != nil {
		return nil, s.fault(err)
	}
	s.cfg.Metrics.saw(changes.Revision)
	return WireChanges(changes), nil
}

// WireChanges are changes as services tell them each other.
func WireChanges(c authstore.Changes) *internalv1.ListChangesResponse {
	return &internalv1.ListChangesResponse{Revision: c.Revision, CredentialIds: c.CredentialIDs, Accounts: c.Accounts, All: c.All}
}

// RecordAudit implements wiggleinternalv1connect.PrincipalServiceHandler.
func (s *Server) RecordAudit(ctx context.Context, req *internalv1.RecordAuditRequest) (*internalv1.RecordAuditResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	entries := make([]authstore.Entry, 0, len(req.GetEntries()))
	for _, e := range req.GetEntries() {
		entries = append(entries, entryOf(e))
	}
	if err := s.store.Record(ctx, entries...); err != nil {
		return nil, s.fault(err)
	}
	return &internalv1.RecordAuditResponse{}, nil
}

func entryOf(e *wigglev1.AuditEntry) authstore.Entry {
	return authstore.Entry{
		Principal: e.GetPrincipal(), Address: e.GetAddress(), Action: e.GetAction(), Target: e.GetTarget(), Allowed: e.GetAllowed(),
		Detail: e.GetDetail(), TraceID: e.GetTraceId(),
	}
}
