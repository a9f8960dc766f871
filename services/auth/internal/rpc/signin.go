package rpc

import (
	"context"
	"errors"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/authstore"
	"github.com/wiggle-run/wiggle/services/auth/internal/credential"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// Actions of the audit log that need no permission.
const (
	actionSignIn         = "auth.sign_in"
	actionSignOut        = "auth.sign_out"
	actionSetUp          = "auth.set_up"
	actionChangePassword = "auth.change_password"
	actionRevokeSession  = "auth.revoke_session"
)

// wrongSignIn is the one error of a wrong name, a wrong password and a disabled account.
func wrongSignIn() error { return faults.Unauthenticated("the name or the password is wrong") }

// SignIn implements wigglev1connect.AuthServiceHandler. The limits come first, so that a flood costs no hashes. Then every
// name takes the same way: one read, one hash. Whether the token goes into a cookie is the router's affair.
func (s *Server) SignIn(ctx context.Context, req *wigglev1.SignInRequest) (*wigglev1.SignInResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	who := callerOf(ctx)
	who.principal = nil // a session that is shown along has no say
	origin := policy.Origin(who.address)
	if err := s.store.Try(ctx, req.GetName(), origin); err != nil {
		return nil, s.notSignedIn(ctx, err)
	}
	account, hash, err := s.store.WithPassword(ctx, req.GetName())
	if err != nil && !errors.Is(err, authstore.ErrNotFound) {
		return nil, s.notSignedIn(ctx, err)
	}
	right, err := s.hasher.Verify(ctx, hash, req.GetPassword())
	if err != nil {
		return nil, s.notSignedIn(ctx, err)
	}
	if !right || account.Disabled {
		// Names that are none are left out: people type passwords into the wrong field.
		s.record(ctx, who.entry(actionSignIn, account.Name, false, "wrong name or password, or the account is disabled"))
		return nil, s.notSignedIn(ctx, wrongSignIn())
	}
	upgraded := hash
	if s.hasher.Outdated(hash) {
		if upgraded, err = s.hasher.Hash(ctx, req.GetPassword()); err != nil {
			return nil, s.notSignedIn(ctx, err)
		}
	}
	res, err := s.beginSession(ctx, who, account.Name, origin, hash, upgraded)
	if err != nil {
		return nil, s.notSignedIn(ctx, err)
	}
	s.cfg.Metrics.signedIn(ctx, outcomeOK)
	return res, nil
}

// notSignedIn counts a sign-in that failed.
func (s *Server) notSignedIn(ctx context.Context, err error) error {
	fault := s.fault(err)
	switch faults.CodeOf(fault) {
	case faults.CodeUnauthenticated:
		s.cfg.Metrics.signedIn(ctx, outcomeRefused)
	case faults.CodeResourceExhausted:
		s.cfg.Metrics.signedIn(ctx, outcomeLimited)
	default:
		s.cfg.Metrics.signedIn(ctx, outcomeFailed)
	}
	return fault
}

// beginSession begins a session with a token of its own, if the account still is what its password was checked for.
func (s *Server) beginSession(
	ctx context.Context, who caller, name, origin, checked, upgraded string,
) (*wigglev1.SignInResponse, error) {
	minted := credential.New(credential.Session)
	res := &wigglev1.SignInResponse{Token: minted.Reveal()}
	changes, err := s.store.Change(ctx, "sign in", func(ctx context.Context, tx *authstore.Tx) error {
		account, err := tx.Account(ctx, name)
		if errors.Is(err, authstore.ErrNotFound) || account.Disabled {
			return wrongSignIn()
		}
		if err != nil {
			return err
		}
		hash, err := tx.Password(ctx, account.ID)
		if err != nil {
			return err
		}
		if hash != checked {
			return wrongSignIn() // it was changed meanwhile
		}
		if upgraded != checked {
			if err := tx.SetPassword(ctx, account.ID, upgraded); err != nil {
				return err
			}
		}
		if err := tx.SignedIn(ctx, account.ID, origin); err != nil {
			return err
		}
		session, err := tx.InsertSession(ctx, account, minted.ID, minted.Hash(), who.address, who.agent)
		res.Session = wireSession(session, session.ID)
		entry := who.entry(actionSignIn, account.Name, true, "session "+session.ID)
		entry.Principal = "user/" + account.Name
		tx.Audit(entry)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.announce(changes)
	return res, nil
}

// SignOut implements wigglev1connect.AuthServiceHandler.
func (s *Server) SignOut(ctx context.Context, _ *wigglev1.SignOutRequest) (*wigglev1.SignOutResponse, error) {
	_, session, err := callerOf(ctx).user()
	if err != nil {
		return nil, err
	}
	err = s.change(ctx, act{action: actionSignOut, target: session}, func(ctx context.Context, c *change) error {
		_, err := c.EndSessions(ctx, c.owner, session, "")
		return err
	})
	// One that is over is signed out.
	if err != nil && faults.CodeOf(err) != faults.CodeUnauthenticated {
		return nil, err
	}
	return &wigglev1.SignOutResponse{}, nil
}

// SetUp implements wigglev1connect.AuthServiceHandler.
func (s *Server) SetUp(ctx context.Context, req *wigglev1.SetUpRequest) (*wigglev1.SetUpResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	if err := checkNewAccount(req.GetName(), req.GetPassword()); err != nil {
		return nil, err
	}
	who := callerOf(ctx)
	if err := s.store.TryOrigin(ctx, policy.Origin(who.address)); err != nil {
		return nil, s.fault(err)
	}
	token, err := credential.Parse(req.GetToken())
	if err != nil || token.Kind != credential.SetUp {
		return nil, s.refused(ctx, who, act{action: actionSetUp}, wrongSetUp())
	}
	hash, err := s.hasher.Hash(ctx, req.GetPassword())
	if err != nil {
		return nil, s.fault(err)
	}
	changes, err := s.store.Change(ctx, "set up", func(ctx context.Context, tx *authstore.Tx) error {
		has, err := tx.HasAdmin(ctx)
		if err != nil {
			return err
		}
		right, err := tx.UseSetUp(ctx, token)
		if err != nil {
			return err
		}
		if has || !right {
			return wrongSetUp()
		}
		tx.Audit(who.entry(actionSetUp, req.GetName(), true, "by "+token.String()))
		return tx.MakeAdmin(ctx, req.GetName(), hash)
	})
	if err != nil {
		return nil, s.refused(ctx, who, act{action: actionSetUp, target: token.String()}, err)
	}
	s.announce(changes)
	return &wigglev1.SetUpResponse{}, nil
}

func wrongSetUp() error {
	return faults.Unauthenticated("the set-up token is not valid: it was used, is older than a day, or there is an administrator " +
		"already; while there is none, an auth process that starts prints a new one when the old one is over")
}

// WhoAmI implements wigglev1connect.AuthServiceHandler.
func (s *Server) WhoAmI(ctx context.Context, _ *wigglev1.WhoAmIRequest) (*wigglev1.WhoAmIResponse, error) {
	who := callerOf(ctx).principal.Message()
	kinds := map[internalv1.PrincipalKind]string{
		internalv1.PrincipalKind_PRINCIPAL_KIND_USER: "user", internalv1.PrincipalKind_PRINCIPAL_KIND_KEY: "key",
		internalv1.PrincipalKind_PRINCIPAL_KIND_SERVICE: "service", internalv1.PrincipalKind_PRINCIPAL_KIND_ANONYMOUS: "anonymous",
	}
	return &wigglev1.WhoAmIResponse{
		Name: who.GetName(), Kind: kinds[who.GetKind()], Roles: who.GetRoles(), Permissions: who.GetPermissions(),
		ExpiresAt: who.GetExpiresAt(), Enforced: who.GetKind() != internalv1.PrincipalKind_PRINCIPAL_KIND_ANONYMOUS,
	}, nil
}

// ChangePassword implements wigglev1connect.AuthServiceHandler. Whoever has got hold of a session is no further by it: the
// present password is asked for, and guesses at it are counted as sign-ins are.
func (s *Server) ChangePassword(
	ctx context.Context, req *wigglev1.ChangePasswordRequest,
) (*wigglev1.ChangePasswordResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	who := callerOf(ctx)
	name, session, err := who.user()
	if err != nil {
		return nil, err
	}
	if err := checkNewPassword("new_password", req.GetNewPassword()); err != nil {
		return nil, err
	}
	if err := s.store.Try(ctx, name, policy.Origin(who.address)); err != nil {
		return nil, s.fault(err)
	}
	a := act{action: actionChangePassword, target: name}
	_, old, err := s.store.WithPassword(ctx, name)
	if err != nil && !errors.Is(err, authstore.ErrNotFound) {
		return nil, s.fault(err)
	}
	right, err := s.hasher.Verify(ctx, old, req.GetOldPassword())
	if err != nil {
		return nil, s.fault(err)
	}
	if !right {
		return nil, s.refused(ctx, who, a, faults.Denied("the present password is wrong"))
	}
	hash, err := s.hasher.Hash(ctx, req.GetNewPassword())
	if err != nil {
		return nil, s.fault(err)
	}
	err = s.change(ctx, a, func(ctx context.Context, c *change) error {
		present, err := c.Password(ctx, c.owner)
		if err != nil {
			return err
		}
		if present != old {
			return faults.Denied("the present password is wrong: it was changed a moment ago")
		}
		if err := c.SetPassword(ctx, c.owner, hash); err != nil {
			return err
		}
		_, err = c.EndSessions(ctx, c.owner, "", session)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &wigglev1.ChangePasswordResponse{}, nil
}

// ListSessions implements wigglev1connect.AuthServiceHandler.
func (s *Server) ListSessions(ctx context.Context, _ *wigglev1.ListSessionsRequest) (*wigglev1.ListSessionsResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	name, session, err := callerOf(ctx).user()
	if err != nil {
		return nil, err
	}
	sessions, err := s.store.Sessions(ctx, name)
	if err != nil {
		return nil, s.fault(err)
	}
	return &wigglev1.ListSessionsResponse{Sessions: wireSessions(sessions, session)}, nil
}

// RevokeSession implements wigglev1connect.AuthServiceHandler. Another account's session is none of the caller's.
func (s *Server) RevokeSession(ctx context.Context, req *wigglev1.RevokeSessionRequest) (*wigglev1.RevokeSessionResponse, error) {
	if _, _, err := callerOf(ctx).user(); err != nil {
		return nil, err
	}
	err := s.change(ctx, act{action: actionRevokeSession, target: req.GetSessionId()}, func(ctx context.Context, c *change) error {
		n, err := c.EndSessions(ctx, c.owner, req.GetSessionId(), "")
		if err == nil && n == 0 {
			err = faults.NotFound("session", req.GetSessionId())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &wigglev1.RevokeSessionResponse{}, nil
}

func checkNewAccount(name, password string) error {
	if !policy.ValidName(name) {
		return invalidName("name", name)
	}
	return checkNewPassword("password", password)
}

func checkNewPassword(field, password string) error {
	if policy.ValidPassword(password) {
		return nil
	}
	return faults.Invalid(faults.Problem(field, "has %d bytes; allowed are %d to %d",
		len(password), policy.MinPassword, policy.MaxPassword))
}
