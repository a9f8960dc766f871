package accounts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/credentials"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/process"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// loginFlags are those of `wiggle login`.
type loginFlags struct {
	secretFlags

	name  string
	setUp bool
}

func newLogin(p *program) *cobra.Command {
	var f loginFlags
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Sign in, and keep the session for later commands",
		Long: `Sign in with a name and a password. The session is kept for this server in credentials.json, in
the directory wiggle below the user's directory for configuration, which nobody else may read.
Commands use it unless --api-key-file, WIGGLE_API_KEY or WIGGLE_API_KEY_FILE says otherwise.

With --setup the first administrator is made first, by the token that the first start of the auth
service has printed. The token is asked for as the password is; with --password-stdin it is the first
line of standard input, and the password the second.`,
		Example: `  wiggle login --name alice
  wiggle login --setup --name alice
  wiggle login --name alice --password-stdin < password.txt`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return shell.Usage(cmd, errors.New("login takes no argument: give the name by --name; tokens and passwords are asked for"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return p.login(cmd, f) },
	}
	cmd.Flags().StringVar(&f.name, "name", "", "name of the account; asked for if it is not given")
	cmd.Flags().BoolVar(&f.setUp, "setup", false, "make the first administrator, with the token of the first start")
	f.add(cmd, "the password")
	return cmd
}

func (p *program) login(cmd *cobra.Command, f loginFlags) error {
	// First of all, so that no session begins that cannot be kept.
	if _, _, err := p.Sessions().Find(p.Server()); err != nil {
		return err
	}
	if host := plainHost(p.Server()); host != "" {
		p.tellf("wiggle: the password goes to %s over plain http, where others on the way may read it\n", host)
	}
	if f.name == "" {
		if !p.Interactive() || f.stdin {
			return shell.Usage(cmd, errors.New("say who signs in: --name NAME"))
		}
		var err error
		if f.name, err = p.Ask("name: "); err != nil {
			return err
		}
	}
	wanted := []secret{{name: "password", chosen: f.setUp}}
	if f.setUp {
		wanted = append([]secret{{name: "setup token"}}, wanted...)
	}
	secrets, err := f.read(p, cmd, wanted...)
	if err != nil {
		return err
	}
	return p.withKey(cmd, "", func(ctx context.Context, s services) error {
		if f.setUp {
			if _, err := s.auth.SetUp(ctx, &wigglev1.SetUpRequest{Token: secrets[0], Name: f.name, Password: secrets[1]}); err != nil {
				return wiggle.AsError("set up", err)
			}
		}
		return p.signIn(ctx, s, f.name, secrets[len(secrets)-1])
	})
}

func (p *program) signIn(ctx context.Context, s services, name, password string) error {
	res, err := s.auth.SignIn(ctx, &wigglev1.SignInRequest{Name: name, Password: password})
	if err != nil {
		return wiggle.AsError("sign in", err)
	}
	session := credentials.Session{Name: res.GetSession().GetAccount(), ID: res.GetSession().GetId(), Token: res.GetToken()}
	if session.Name == "" {
		session.Name = name
	}
	if at := timeJSON(res.GetSession().GetExpiresAt()); at != nil {
		session.ExpiresAt = *at
	}
	if err := p.Sessions().Put(p.Server(), session, p.Now()); err != nil {
		return err
	}
	for _, variable := range []string{"WIGGLE_API_KEY", "WIGGLE_API_KEY_FILE"} {
		if value, _ := process.Lookup(p.Environ())(variable); value != "" {
			p.tellf("wiggle: %s is set and goes before the session\n", variable)
		}
	}
	if p.JSON() {
		return p.PrintJSON(signedInJSON{p.Server(), session.Name, session.ID, shell.TimeJSON(session.ExpiresAt)})
	}
	p.printf("signed in at %s as %s, until %s at the latest\n", p.Server(), session.Name, p.When(session.ExpiresAt))
	return nil
}

// signedInJSON is what `wiggle login -o json` prints.
type signedInJSON struct {
	Server    string     `json:"server"`
	Name      string     `json:"name"`
	SessionID string     `json:"session_id"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// plainHost is the host of a URL by which secrets go over the network in the clear; empty if they do not.
func plainHost(server string) string {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" || u.Hostname() == "localhost" {
		return ""
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil && addr.IsLoopback() {
		return ""
	}
	return u.Host
}

func newLogout(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "logout",
		Short: "End the session of wiggle login, and forget it",
		Args:  shell.Args(0, 0, ""),
		RunE:  func(cmd *cobra.Command, _ []string) error { return p.logout(cmd) },
	}
}

func (p *program) logout(cmd *cobra.Command) error {
	session, ok, err := p.Sessions().Find(p.Server())
	if err != nil {
		return err
	}
	if ok {
		err = p.withKey(cmd, session.Token, func(ctx context.Context, s services) error {
			_, err := s.auth.SignOut(ctx, &wigglev1.SignOutRequest{})
			return wiggle.AsError("sign out", err)
		})
		if removed := p.Sessions().Remove(p.Server()); removed != nil {
			return removed
		}
		if err != nil && !errors.Is(err, wiggle.ErrUnauthenticated) { // which is what has ended already
			return &shell.Failure{Exit: shell.ExitFailure, Err: err, Hint: fmt.Sprintf(
				"the session is forgotten here, but lasts at the server: end it with wiggle sessions revoke %s", session.ID)}
		}
	}
	if p.JSON() {
		return p.PrintJSON(map[string]any{"server": p.Server(), "signed_out": ok})
	}
	if !ok {
		p.printf("not signed in at %s\n", p.Server())
		return nil
	}
	p.printf("signed out at %s\n", p.Server())
	return nil
}

// whoJSON is what `wiggle whoami -o json` prints.
type whoJSON struct {
	Server      string     `json:"server"`
	Name        string     `json:"name"`
	Kind        string     `json:"kind"`
	Roles       []string   `json:"roles"`
	Permissions []string   `json:"permissions"`
	ExpiresAt   *time.Time `json:"expires_at,omitempty"`
	Enforced    bool       `json:"enforced"`
}

func newWhoAmI(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Show who you are to the server, and what you may do",
		Args:  shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd, func(ctx context.Context, s services) error {
				res, err := s.auth.WhoAmI(ctx, &wigglev1.WhoAmIRequest{})
				if err != nil {
					return wiggle.AsError("ask who you are", err)
				}
				return p.printWho(res)
			})
		},
	}
}

func (p *program) printWho(res *wigglev1.WhoAmIResponse) error {
	if p.JSON() {
		return p.PrintJSON(whoJSON{
			p.Server(), res.GetName(), res.GetKind(), listJSON(res.GetRoles()), listJSON(res.GetPermissions()),
			timeJSON(res.GetExpiresAt()), res.GetEnforced(),
		})
	}
	t := p.Table()
	t.Row("server", p.Server())
	t.Row(res.GetKind(), orDash(res.GetName()))
	t.Row("roles", listOrDash(res.GetRoles()))
	for i, permission := range res.GetPermissions() {
		t.Row(map[bool]string{true: "may"}[i == 0], permission)
	}
	if res.GetExpiresAt() != nil {
		t.Row("until", p.when(res.GetExpiresAt()))
	}
	t.Flush()
	if !res.GetEnforced() {
		p.printf("nothing is enforced here: WIGGLE_AUTH is off at the router, and everybody may do everything\n")
	}
	return nil
}

// listJSON is a list of a document: empty, not null.
func listJSON(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
