package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/authstore"
	"github.com/wiggle-run/wiggle/services/auth/internal/password"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

const (
	manageUsers = "user.manage"
	accountList = "accounts"
)

// account reads an account that the caller acts upon. Who has more than the caller is out of the caller's reach: else whoever
// may manage accounts could give an administrator another password, and sign in as such.
func (c *change) account(ctx context.Context, name string) (authstore.Account, error) {
	a, err := c.Account(ctx, name)
	if errors.Is(err, authstore.ErrNotFound) {
		return a, faults.NotFound("account", name)
	}
	if err != nil {
		return a, err
	}
	return a, c.beyond(c.Roles.Permissions(a.Roles, nil))
}

// CreateAccount implements wigglev1connect.AccountServiceHandler.
func (s *Server) CreateAccount(ctx context.Context, req *wigglev1.CreateAccountRequest) (*wigglev1.CreateAccountResponse, error) {
	if err := checkNewAccount(req.GetName(), req.GetPassword()); err != nil {
		return nil, err
	}
	hash, err := s.hasher.Hash(ctx, req.GetPassword())
	if err != nil {
		return nil, s.fault(err)
	}
	res := &wigglev1.CreateAccountResponse{}
	err = s.change(ctx, act{permission: manageUsers, action: "user.create", target: req.GetName()},
		func(ctx context.Context, c *change) error {
			if err := c.mayHave(req.GetRoles(), nil); err != nil {
				return err
			}
			roles := distinct(req.GetRoles())
			id, err := c.InsertAccount(ctx, req.GetName(), hash, roles)
			if err == nil && id == 0 {
				err = faults.AlreadyExists("account", req.GetName())
			}
			c.detail = fmt.Sprintf("roles %v", roles)
			res.Account = wireAccount(authstore.Account{Name: req.GetName(), Roles: roles, CreatedAt: c.Now})
			return err
		})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// ImportAccounts implements wigglev1connect.AccountServiceHandler. All of them are imported or none.
func (s *Server) ImportAccounts(
	ctx context.Context, req *wigglev1.ImportAccountsRequest,
) (*wigglev1.ImportAccountsResponse, error) {
	var problems []*wigglev1.Problem
	for i, a := range req.GetAccounts() {
		where := fmt.Sprintf("accounts[%d]", i)
		if !policy.ValidName(a.GetName()) {
			problems = append(problems, faults.Problem(where+".name", "is no name: letters, digits and . _ @ + -"))
		}
		if err := password.Validate(a.GetPasswordHash()); err != nil {
			problems = append(problems, faults.Problem(where+".password_hash", "%s", err.Error()))
		}
	}
	if problems != nil {
		return nil, faults.Invalid(problems...)
	}
	res := &wigglev1.ImportAccountsResponse{}
	target := fmt.Sprintf("%d accounts", len(req.GetAccounts()))
	err := s.change(ctx, act{permission: manageUsers, action: "user.import", target: target},
		func(ctx context.Context, c *change) error {
			res.Created, res.Existing = 0, nil
			for _, a := range req.GetAccounts() {
				if err := c.mayHave(a.GetRoles(), nil); err != nil {
					return err
				}
				id, err := c.InsertAccount(ctx, a.GetName(), a.GetPasswordHash(), distinct(a.GetRoles()))
				if err != nil {
					return err
				}
				if id == 0 {
					res.Existing = append(res.Existing, a.GetName())
					continue
				}
				res.Created++
				c.Audit(c.caller.entry("user.create", a.GetName(), true, fmt.Sprintf("imported, roles %v", a.GetRoles())))
			}
			c.detail = fmt.Sprintf("%d created, %d existed", res.GetCreated(), len(res.GetExisting()))
			return nil
		})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// GetAccount implements wigglev1connect.AccountServiceHandler.
func (s *Server) GetAccount(ctx context.Context, req *wigglev1.GetAccountRequest) (*wigglev1.GetAccountResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	a, err := s.store.Account(ctx, req.GetName())
	if errors.Is(err, authstore.ErrNotFound) {
		return nil, faults.NotFound("account", req.GetName())
	}
	if err != nil {
		return nil, s.fault(err)
	}
	return &wigglev1.GetAccountResponse{Account: wireAccount(a)}, nil
}

// ListAccounts implements wigglev1connect.AccountServiceHandler.
func (s *Server) ListAccounts(ctx context.Context, req *wigglev1.ListAccountsRequest) (*wigglev1.ListAccountsResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	after, err := pageStart(accountList, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	accounts, err := s.store.Accounts(ctx, after, size+1)
	if err != nil {
		return nil, s.fault(err)
	}
	res := &wigglev1.ListAccountsResponse{}
	if len(accounts) > size {
		accounts = accounts[:size]
		res.NextPageToken = pageToken(accountList, policy.NameKey(accounts[size-1].Name))
	}
	for _, a := range accounts {
		res.Accounts = append(res.Accounts, wireAccount(a))
	}
	return res, nil
}

// UpdateAccount implements wigglev1connect.AccountServiceHandler.
func (s *Server) UpdateAccount(ctx context.Context, req *wigglev1.UpdateAccountRequest) (*wigglev1.UpdateAccountResponse, error) {
	res := &wigglev1.UpdateAccountResponse{}
	err := s.change(ctx, act{permission: manageUsers, action: "user.update", target: req.GetName()},
		func(ctx context.Context, c *change) error {
			a, err := c.account(ctx, req.GetName())
			if err != nil {
				return err
			}
			if req.GetRoles() != nil {
				a.Roles = distinct(req.GetRoles().GetNames())
				if err := c.mayHave(a.Roles, nil); err != nil {
					return err
				}
			}
			if req.Disabled != nil {
				a.Disabled = req.GetDisabled()
			}
			res.Account = wireAccount(a)
			c.detail = fmt.Sprintf("roles %v, disabled %v", a.Roles, a.Disabled)
			return c.update(ctx, a)
		})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// update writes an account, ends the sessions of one that may not sign in, and has caches forget what it and its keys could do.
func (c *change) update(ctx context.Context, a authstore.Account) error {
	if err := c.UpdateAccount(ctx, a); err != nil {
		return err
	}
	c.ForgetAccount(a.Name)
	if err := c.ForgetKeysOf(ctx, a.ID); err != nil {
		return err
	}
	if a.Disabled {
		if _, err := c.EndSessions(ctx, a.ID, "", ""); err != nil {
			return err
		}
	}
	return c.keepsAdmin(ctx)
}

// ResetPassword implements wigglev1connect.AccountServiceHandler.
func (s *Server) ResetPassword(ctx context.Context, req *wigglev1.ResetPasswordRequest) (*wigglev1.ResetPasswordResponse, error) {
	if err := checkNewPassword("password", req.GetPassword()); err != nil {
		return nil, err
	}
	hash, err := s.hasher.Hash(ctx, req.GetPassword())
	if err != nil {
		return nil, s.fault(err)
	}
	err = s.change(ctx, act{permission: manageUsers, action: "user.reset_password", target: req.GetName()},
		func(ctx context.Context, c *change) error {
			a, err := c.account(ctx, req.GetName())
			if err != nil {
				return err
			}
			if err := c.SetPassword(ctx, a.ID, hash); err != nil {
				return err
			}
			c.ForgetAccount(a.Name)
			_, err = c.EndSessions(ctx, a.ID, "", "")
			return err
		})
	if err != nil {
		return nil, err
	}
	return &wigglev1.ResetPasswordResponse{}, nil
}

// DeleteAccount implements wigglev1connect.AccountServiceHandler.
func (s *Server) DeleteAccount(ctx context.Context, req *wigglev1.DeleteAccountRequest) (*wigglev1.DeleteAccountResponse, error) {
	err := s.change(ctx, act{permission: manageUsers, action: "user.delete", target: req.GetName()},
		func(ctx context.Context, c *change) error {
			a, err := c.account(ctx, req.GetName())
			if err != nil {
				return err
			}
			c.ForgetAccount(a.Name)
			if err := c.ForgetKeysOf(ctx, a.ID); err != nil {
				return err
			}
			if err := c.DeleteAccount(ctx, a.ID); err != nil {
				return err
			}
			return c.keepsAdmin(ctx)
		})
	if err != nil {
		return nil, err
	}
	return &wigglev1.DeleteAccountResponse{}, nil
}

// ListAccountSessions implements wigglev1connect.AccountServiceHandler.
func (s *Server) ListAccountSessions(
	ctx context.Context, req *wigglev1.ListAccountSessionsRequest,
) (*wigglev1.ListAccountSessionsResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	if _, err := s.store.Account(ctx, req.GetName()); errors.Is(err, authstore.ErrNotFound) {
		return nil, faults.NotFound("account", req.GetName())
	}
	sessions, err := s.store.Sessions(ctx, req.GetName())
	if err != nil {
		return nil, s.fault(err)
	}
	current := callerOf(ctx).principal.Message().GetCredentialId()
	return &wigglev1.ListAccountSessionsResponse{Sessions: wireSessions(sessions, current)}, nil
}

// RevokeAccountSessions implements wigglev1connect.AccountServiceHandler. It gives nothing, so it needs no more than the
// permission.
func (s *Server) RevokeAccountSessions(
	ctx context.Context, req *wigglev1.RevokeAccountSessionsRequest,
) (*wigglev1.RevokeAccountSessionsResponse, error) {
	res := &wigglev1.RevokeAccountSessionsResponse{}
	err := s.change(ctx, act{permission: manageUsers, action: "user.revoke_sessions", target: req.GetName()},
		func(ctx context.Context, c *change) error {
			a, err := c.Account(ctx, req.GetName())
			if errors.Is(err, authstore.ErrNotFound) {
				return faults.NotFound("account", req.GetName())
			}
			if err != nil {
				return err
			}
			n, err := c.EndSessions(ctx, a.ID, req.GetSessionId(), "")
			res.Revoked = int32(n) //nolint:gosec // policy.MaxSessions bounds it
			c.detail = fmt.Sprintf("%d sessions", n)
			return err
		})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// distinct is a list of names in order, each once.
func distinct(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}
