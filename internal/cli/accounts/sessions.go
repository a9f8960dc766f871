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

// sessionJSON is a session in a document.
type sessionJSON struct {
	ID        string     `json:"id"`
	Account   string     `json:"account"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	UsedAt    *time.Time `json:"used_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	Address   string     `json:"address,omitempty"`
	UserAgent string     `json:"user_agent,omitempty"`
	Current   bool       `json:"current"`
}

func (p *program) printSessions(list []*wigglev1.Session) error {
	if p.JSON() {
		found := make([]sessionJSON, 0, len(list))
		for _, s := range list {
			found = append(found, sessionJSON{
				s.GetId(), s.GetAccount(), timeJSON(s.GetCreatedAt()), timeJSON(s.GetUsedAt()), timeJSON(s.GetExpiresAt()),
				s.GetAddress(), s.GetUserAgent(), s.GetCurrent(),
			})
		}
		return p.PrintJSON(map[string]any{"sessions": found})
	}
	if len(list) == 0 {
		p.printf("no sessions\n")
		return nil
	}
	t := p.Table("ID", "SINCE", "USED", "UNTIL", "FROM", "WITH")
	for _, s := range list {
		id := s.GetId()
		if s.GetCurrent() {
			id += " (this one)"
		}
		t.Row(id, p.when(s.GetCreatedAt()), p.when(s.GetUsedAt()), p.when(s.GetExpiresAt()),
			orDash(s.GetAddress()), orDash(s.GetUserAgent()))
	}
	t.Flush()
	return nil
}

func newSessions(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "sessions [revoke ID]",
		Short: "Show your own sessions, or end one",
		Example: `  wiggle sessions
  wiggle sessions revoke 4tC0qL`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && args[0] != "revoke":
				return shell.Usage(cmd, fmt.Errorf("sessions: there is no %q; use revoke ID, or nothing to list them", args[0]))
			case len(args) == 1:
				return shell.Usage(cmd, errors.New("sessions revoke: missing the ID of a session"))
			}
			return shell.Args(0, 2, "")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.with(cmd, func(ctx context.Context, s services) error {
				if len(args) == 0 {
					res, err := s.auth.ListSessions(ctx, &wigglev1.ListSessionsRequest{})
					if err != nil {
						return wiggle.AsError("list sessions", err)
					}
					return p.printSessions(res.GetSessions())
				}
				if _, err := s.auth.RevokeSession(ctx, &wigglev1.RevokeSessionRequest{SessionId: args[1]}); err != nil {
					return wiggle.AsError("end session "+args[1], err)
				}
				return p.done(map[string]any{"id": args[1], "revoked": true}, "session %s ended\n", args[1])
			})
		},
	}
}

// done says what was done: as a document, or as a line.
func (p *program) done(document any, format string, args ...any) error {
	if p.JSON() {
		return p.PrintJSON(document)
	}
	p.printf(format, args...)
	return nil
}

func newPassword(p *program) *cobra.Command {
	var f secretFlags
	cmd := &cobra.Command{
		Use:   "password",
		Short: "Change your own password; your other sessions end",
		Long: `Change your own password. The present one and the new one are asked for, or read from standard
input, a line each. Your sessions but the one that does it end.`,
		Example: `  wiggle password`,
		Args:    shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			secrets, err := f.read(p, cmd, secret{name: "present password"}, secret{name: "new password", chosen: true})
			if err != nil {
				return err
			}
			return p.with(cmd, func(ctx context.Context, s services) error {
				_, err := s.auth.ChangePassword(ctx, &wigglev1.ChangePasswordRequest{OldPassword: secrets[0], NewPassword: secrets[1]})
				if err != nil {
					return wiggle.AsError("change the password", err)
				}
				return p.done(map[string]any{"changed": true}, "the password is changed; your other sessions have ended\n")
			})
		},
	}
	f.add(cmd, "the two passwords")
	return cmd
}
