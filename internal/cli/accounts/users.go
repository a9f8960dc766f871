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

func newUsers(p *program) *cobra.Command {
	cmd := shell.Family(&cobra.Command{
		Use:   "users",
		Short: "Look after accounts: who signs in, and with which roles",
	})
	cmd.AddCommand(newUsersList(p), newUsersGet(p), newUsersCreate(p), newUsersUpdate(p), newResetPassword(p), newUsersDelete(p),
		newImport(p), newUserSessions(p), newRevokeSessions(p))
	return cmd
}

// accountJSON is an account in a document.
type accountJSON struct {
	Name       string     `json:"name"`
	Roles      []string   `json:"roles"`
	Disabled   bool       `json:"disabled"`
	CreatedAt  *time.Time `json:"created_at,omitempty"`
	SignedInAt *time.Time `json:"signed_in_at,omitempty"`
}

func toAccountJSON(a *wigglev1.Account) accountJSON {
	return accountJSON{a.GetName(), listJSON(a.GetRoles()), a.GetDisabled(), timeJSON(a.GetCreatedAt()), timeJSON(a.GetSignedInAt())}
}

func stateOf(a *wigglev1.Account) string {
	if a.GetDisabled() {
		return "disabled"
	}
	return "enabled"
}

func (p *program) printAccount(a *wigglev1.Account) error {
	if p.JSON() {
		return p.PrintJSON(toAccountJSON(a))
	}
	t := p.Table()
	t.Row("user", a.GetName())
	t.Row("roles", listOrDash(a.GetRoles()))
	t.Row("state", stateOf(a))
	t.Row("created", p.when(a.GetCreatedAt()))
	t.Row("signed in", p.when(a.GetSignedInAt()))
	t.Flush()
	return nil
}

func newUsersList(p *program) *cobra.Command {
	page := func(ctx context.Context, s services, size int32, token string) ([]*wigglev1.Account, string, error) {
		res, err := s.accounts.ListAccounts(ctx, &wigglev1.ListAccountsRequest{PageSize: size, PageToken: token})
		return res.GetAccounts(), res.GetNextPageToken(), wiggle.AsError("list users", err)
	}
	return newList(p, "List accounts by name", page, p.printAccounts)
}

func (p *program) printAccounts(all []*wigglev1.Account) error {
	if p.JSON() {
		found := make([]accountJSON, 0, len(all))
		for _, a := range all {
			found = append(found, toAccountJSON(a))
		}
		return p.PrintJSON(map[string]any{"users": found})
	}
	t := p.Table("NAME", "ROLES", "STATE", "CREATED", "SIGNED IN")
	for _, a := range all {
		t.Row(a.GetName(), listOrDash(a.GetRoles()), stateOf(a), p.when(a.GetCreatedAt()), p.when(a.GetSignedInAt()))
	}
	t.Flush()
	return nil
}

func newUsersGet(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME",
		Short: "Show an account",
		Args:  shell.Args(1, 1, "the NAME of a user"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd, func(ctx context.Context, s services) error {
				res, err := s.accounts.GetAccount(ctx, &wigglev1.GetAccountRequest{Name: args[0]})
				if err != nil {
					return wiggle.AsError("get user "+args[0], err)
				}
				return p.printAccount(res.GetAccount())
			})
		},
	}
}

func newUsersCreate(p *program) *cobra.Command {
	var f secretFlags
	var roles []string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make an account",
		Long: `Make an account. Its password is asked for, or read from standard input; its owner changes it with
wiggle password. You can give only roles that allow no more than you may do yourself.`,
		Example: `  wiggle users create alice --role operator
  wiggle users create bob --role viewer --role orders-support --password-stdin < password.txt`,
		Args: shell.Args(1, 1, "the NAME of the user"),
		RunE: func(cmd *cobra.Command, args []string) error {
			secrets, err := f.read(p, cmd, secret{name: "password of " + args[0], chosen: true})
			if err != nil {
				return err
			}
			return p.with(cmd, func(ctx context.Context, s services) error {
				res, err := s.accounts.CreateAccount(ctx, &wigglev1.CreateAccountRequest{Name: args[0], Password: secrets[0], Roles: roles})
				if err != nil {
					return wiggle.AsError("create user "+args[0], err)
				}
				return p.printAccount(res.GetAccount())
			})
		},
	}
	p.rolesFlag(cmd, &roles, "a `role` of the account; several by repeating it")
	f.add(cmd, "the password")
	return cmd
}

// updateFlags are those of `wiggle users update`.
type updateFlags struct {
	shell.Confirmation

	roles           []string
	disable, enable bool
}

func newUsersUpdate(p *program) *cobra.Command {
	var f updateFlags
	cmd := &cobra.Command{
		Use:   "update NAME",
		Short: "Change the roles of an account, or whether it may sign in",
		Long: `Change the roles of an account, or whether it may sign in. The roles that are given take the place
of those before; --role "" takes all away. The sessions of an account that is disabled end. The last
administrator stays one.`,
		Example: `  wiggle users update alice --role operator --role orders-support
  wiggle users update bob --disable`,
		Args: shell.Args(1, 1, "the NAME of a user"),
		RunE: func(cmd *cobra.Command, args []string) error { return p.update(cmd, args[0], f) },
	}
	p.rolesFlag(cmd, &f.roles, "a `role` from now on; several by repeating it")
	cmd.Flags().BoolVar(&f.disable, "disable", false, "it may not sign in any more, and its sessions end")
	cmd.Flags().BoolVar(&f.enable, "enable", false, "it may sign in again")
	f.Add(cmd)
	return cmd
}

func (p *program) update(cmd *cobra.Command, name string, f updateFlags) error {
	req := &wigglev1.UpdateAccountRequest{Name: name}
	if cmd.Flags().Changed("role") {
		req.Roles = &wigglev1.RoleNames{Names: f.roles}
	}
	switch {
	case f.disable && f.enable:
		return shell.Usage(cmd, errors.New("--disable and --enable: use one of them"))
	case f.disable || f.enable:
		req.Disabled = &f.disable
	case req.GetRoles() == nil:
		return shell.Usage(cmd, errors.New("say what to change: --role, --disable or --enable"))
	}
	if f.disable {
		if err := f.Confirm(p.Shell, cmd, fmt.Sprintf("disable %s, and end all sessions?", name)); err != nil {
			return err
		}
	}
	return p.with(cmd, func(ctx context.Context, s services) error {
		res, err := s.accounts.UpdateAccount(ctx, req)
		if err != nil {
			return wiggle.AsError("update user "+name, err)
		}
		return p.printAccount(res.GetAccount())
	})
}

func newResetPassword(p *program) *cobra.Command {
	var f secretFlags
	cmd := &cobra.Command{
		Use:     "reset-password NAME",
		Short:   "Give an account another password; its sessions end",
		Example: `  wiggle users reset-password bob`,
		Args:    shell.Args(1, 1, "the NAME of a user"),
		RunE: func(cmd *cobra.Command, args []string) error {
			secrets, err := f.read(p, cmd, secret{name: "new password of " + args[0], chosen: true})
			if err != nil {
				return err
			}
			return p.with(cmd, func(ctx context.Context, s services) error {
				_, err := s.accounts.ResetPassword(ctx, &wigglev1.ResetPasswordRequest{Name: args[0], Password: secrets[0]})
				if err != nil {
					return wiggle.AsError("reset the password of "+args[0], err)
				}
				return p.done(map[string]any{"name": args[0], "reset": true},
					"%s has another password, and all sessions have ended\n", args[0])
			})
		},
	}
	f.add(cmd, "the password")
	return cmd
}

func newUsersDelete(p *program) *cobra.Command {
	var f shell.Confirmation
	cmd := &cobra.Command{
		Use:     "delete NAME",
		Short:   "Remove an account, its sessions and its keys",
		Example: `  wiggle users delete bob`,
		Args:    shell.Args(1, 1, "the NAME of a user"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.Confirm(p.Shell, cmd, fmt.Sprintf("delete %s, with all sessions and keys?", args[0])); err != nil {
				return err
			}
			return p.with(cmd, func(ctx context.Context, s services) error {
				if _, err := s.accounts.DeleteAccount(ctx, &wigglev1.DeleteAccountRequest{Name: args[0]}); err != nil {
					return wiggle.AsError("delete user "+args[0], err)
				}
				return p.done(map[string]any{"name": args[0], "deleted": true}, "%s is deleted\n", args[0])
			})
		},
	}
	f.Add(cmd)
	return cmd
}

func newUserSessions(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "sessions NAME",
		Short: "Show the sessions of an account, newest first",
		Args:  shell.Args(1, 1, "the NAME of a user"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd, func(ctx context.Context, s services) error {
				res, err := s.accounts.ListAccountSessions(ctx, &wigglev1.ListAccountSessionsRequest{Name: args[0]})
				if err != nil {
					return wiggle.AsError("list the sessions of "+args[0], err)
				}
				return p.printSessions(res.GetSessions())
			})
		},
	}
}

func newRevokeSessions(p *program) *cobra.Command {
	var f shell.Confirmation
	id := ""
	cmd := &cobra.Command{
		Use:   "revoke-sessions NAME",
		Short: "End the sessions of an account, or one of them",
		Example: `  wiggle users revoke-sessions bob
  wiggle users revoke-sessions bob --session 4tC0qL --yes`,
		Args: shell.Args(1, 1, "the NAME of a user"),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := "all sessions"
			if id != "" {
				what = "session " + id
			}
			if err := f.Confirm(p.Shell, cmd, fmt.Sprintf("end %s of %s?", what, args[0])); err != nil {
				return err
			}
			return p.with(cmd, func(ctx context.Context, s services) error {
				res, err := s.accounts.RevokeAccountSessions(ctx, &wigglev1.RevokeAccountSessionsRequest{Name: args[0], SessionId: id})
				if err != nil {
					return wiggle.AsError("end the sessions of "+args[0], err)
				}
				return p.done(map[string]any{"name": args[0], "revoked": res.GetRevoked()},
					"sessions of %s that have ended: %d\n", args[0], res.GetRevoked())
			})
		},
	}
	cmd.Flags().StringVar(&id, "session", "", "only the one with this `ID`")
	f.Add(cmd)
	return cmd
}
