// Package accounts has the commands of accounts and permissions: `wiggle login`, logout, whoami, password and sessions for
// everybody's own sign-in; users, roles, keys and audit for who looks after others (AUT-2, AUT-3, AUT-8).
//
// A secret is read from the terminal without being shown, or from standard input; it is never an argument, which others see in
// the list of processes. The secret of a key is printed once, alone on standard output.
package accounts

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// program is the shell with what these commands print by.
type program struct{ *shell.Shell }

// New makes the commands.
func New(sh *shell.Shell) []*cobra.Command {
	p := &program{sh}
	return []*cobra.Command{
		newLogin(p), newLogout(p), newWhoAmI(p), newPassword(p), newSessions(p),
		newUsers(p), newRoles(p), newKeys(p), newAudit(p),
	}
}

func (p *program) printf(format string, args ...any) { _, _ = fmt.Fprintf(p.Out(), format, args...) }

// tellf says something beside what is printed.
func (p *program) tellf(format string, args ...any) { _, _ = fmt.Fprintf(p.Err(), format, args...) }

// services are those that the commands call.
type services struct {
	auth     wigglev1connect.AuthServiceClient
	accounts wigglev1connect.AccountServiceClient
	roles    wigglev1connect.RoleServiceClient
	keys     wigglev1connect.KeyServiceClient
	audit    wigglev1connect.AuditServiceClient
}

func servicesOf(c *wiggle.Client) services {
	return services{
		auth:     wigglev1connect.NewAuthServiceClient(c.Generated()),
		accounts: wigglev1connect.NewAccountServiceClient(c.Generated()),
		roles:    wigglev1connect.NewRoleServiceClient(c.Generated()),
		keys:     wigglev1connect.NewKeyServiceClient(c.Generated()),
		audit:    wigglev1connect.NewAuditServiceClient(c.Generated()),
	}
}

// with runs a command with the program's own credential.
func (p *program) with(cmd *cobra.Command, do func(ctx context.Context, s services) error) error {
	return p.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error { return do(ctx, servicesOf(c)) })
}

// withKey runs a command with this credential, or with none if it is empty.
func (p *program) withKey(cmd *cobra.Command, key string, do func(ctx context.Context, s services) error) error {
	return p.WithKey(cmd, key, func(ctx context.Context, c *wiggle.Client) error { return do(ctx, servicesOf(c)) })
}

// pageSize is how many items a call asks for.
const pageSize = 1000

// gather reads pages to their end, or until there are more than limit; 0 means all.
func gather[T any](limit int, page func(size int32, token string) (items []T, next string, err error)) ([]T, error) {
	all := []T{}
	for token := ""; ; {
		size := int32(pageSize)
		if limit > 0 {
			size = int32(min(limit+1-len(all), pageSize)) //nolint:gosec // at most a page
		}
		items, next, err := page(size, token)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if next == "" || limit > 0 && len(all) > limit {
			return all, nil
		}
		token = next
	}
}

// newList makes the command that lists all there are.
func newList[T any](
	p *program, short string, page func(ctx context.Context, s services, size int32, token string) ([]T, string, error),
	show func([]T) error,
) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: short,
		Args:  shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd, func(ctx context.Context, s services) error {
				all, err := gather(0, func(size int32, token string) ([]T, string, error) { return page(ctx, s, size, token) })
				if err != nil {
					return err
				}
				return show(all)
			})
		},
	}
}

// plain is text that somebody else wrote, without what would move the cursor or break a table.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) && r != ' ' {
			return ' '
		}
		return r
	}, text)
}

func orDash(text string) string {
	if text = plain(text); strings.TrimSpace(text) == "" {
		return "-"
	}
	return text
}

func listOrDash(names []string) string { return orDash(strings.Join(names, ", ")) }

// when shows an instant that may be absent.
func (p *program) when(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return p.When(t.AsTime())
}

// timeJSON is an instant of a document; nil for none.
func timeJSON(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	return shell.TimeJSON(t.AsTime())
}

// timestamp is an instant of a request; the zero time is none.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// duration reads how long something lasts, with days too.
func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok && err != nil {
		if d, err = time.ParseDuration(days + "h"); err == nil {
			d *= 24
		}
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is no duration: use 30d, 12h or 90m", text)
	}
	return d, nil
}
