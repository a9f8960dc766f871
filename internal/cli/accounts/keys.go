package accounts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/permission"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func newKeys(p *program) *cobra.Command {
	cmd := shell.Family(&cobra.Command{
		Use:   "keys",
		Short: "Look after API keys: what programs call with",
	})
	cmd.AddCommand(newKeysList(p), newKeysCreate(p), newKeysRotate(p), newKeysRevoke(p))
	return cmd
}

// keyJSON is a key in a document, without its secret.
type keyJSON struct {
	ID                 string     `json:"id"`
	Name               string     `json:"name"`
	Roles              []string   `json:"roles"`
	Permissions        []string   `json:"permissions"`
	CreatedBy          string     `json:"created_by,omitempty"`
	CreatedAt          *time.Time `json:"created_at,omitempty"`
	ExpiresAt          *time.Time `json:"expires_at,omitempty"`
	UsedAt             *time.Time `json:"used_at,omitempty"`
	CertificateSubject string     `json:"certificate_subject,omitempty"`
	OldSecretUntil     *time.Time `json:"old_secret_until,omitempty"`
}

func toKeyJSON(k *wigglev1.Key) keyJSON {
	return keyJSON{
		k.GetId(), k.GetName(), listJSON(k.GetRoles()), listJSON(k.GetPermissions()), k.GetCreatedBy(), timeJSON(k.GetCreatedAt()),
		timeJSON(k.GetExpiresAt()), timeJSON(k.GetUsedAt()), k.GetCertificateSubject(), timeJSON(k.GetOldSecretUntil()),
	}
}

func newKeysList(p *program) *cobra.Command {
	page := func(ctx context.Context, s services, size int32, token string) ([]*wigglev1.Key, string, error) {
		res, err := s.keys.ListKeys(ctx, &wigglev1.ListKeysRequest{PageSize: size, PageToken: token})
		return res.GetKeys(), res.GetNextPageToken(), wiggle.AsError("list keys", err)
	}
	return newList(p, "List keys by name, without their secrets", page, p.printKeys)
}

func (p *program) printKeys(all []*wigglev1.Key) error {
	if p.JSON() {
		found := make([]keyJSON, 0, len(all))
		for _, k := range all {
			found = append(found, toKeyJSON(k))
		}
		return p.PrintJSON(map[string]any{"keys": found})
	}
	if len(all) == 0 {
		p.printf("no keys: make one with wiggle keys create\n")
		return nil
	}
	t := p.Table("NAME", "ID", "ROLES", "PERMISSIONS", "BY", "UNTIL", "USED", "NOTE")
	for _, k := range all {
		t.Row(k.GetName(), k.GetId(), listOrDash(k.GetRoles()), listOrDash(k.GetPermissions()), orDash(k.GetCreatedBy()),
			p.when(k.GetExpiresAt()), p.when(k.GetUsedAt()), p.keyNote(k))
	}
	t.Flush()
	return nil
}

func (p *program) keyNote(k *wigglev1.Key) string {
	now := p.Now()
	switch {
	case k.GetExpiresAt() != nil && !k.GetExpiresAt().AsTime().After(now):
		return "expired"
	case k.GetCertificateSubject() != "":
		return "certificate " + plain(k.GetCertificateSubject())
	case k.GetOldSecretUntil() != nil && k.GetOldSecretUntil().AsTime().After(now):
		return "old secret until " + p.when(k.GetOldSecretUntil())
	}
	return "-"
}

// createFlags are those of `wiggle keys create`.
type createFlags struct {
	roles, permissions   []string
	expires, certificate string
	quiet                bool
}

func newKeysCreate(p *program) *cobra.Command {
	var f createFlags
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a key, and print its secret this once",
		Long: `Make a key. Its secret is printed alone on standard output, this once: nobody can read it again. What
there is to say about it goes to standard error.

A key has roles and permissions of its own, and no more than its maker may do. With --certificate it
is not a secret but every client certificate with that subject, where the router checks them.`,
		Example: `  wiggle keys create ci --role operator --expires 90d
  KEY=$(wiggle keys create shop-worker --role worker -q)
  wiggle keys create refunds --permission instance.start:orders/refund > key.txt
  wiggle keys create worker-7 --role worker --certificate "CN=worker-7,O=Example"`,
		Args: shell.Args(1, 1, "the NAME of the key"),
		RunE: func(cmd *cobra.Command, args []string) error { return p.createKey(cmd, args[0], f) },
	}
	p.rolesFlag(cmd, &f.roles, "a `role` of the key; several by repeating it")
	cmd.Flags().StringArrayVar(&f.permissions, "permission", nil, "a `permission` beside those of its roles; several by repeating it")
	cmd.Flags().StringVar(&f.expires, "expires", "", "how long it lasts, a `duration` such as 90d or 12h (default until it is revoked)")
	cmd.Flags().StringVar(&f.certificate, "certificate", "", "the `subject` of the client certificates that are the key")
	addQuiet(cmd, &f.quiet)
	return cmd
}

func addQuiet(cmd *cobra.Command, quiet *bool) {
	cmd.Flags().BoolVarP(quiet, "quiet", "q", false, "print the secret and say nothing beside it")
}

func (p *program) createKey(cmd *cobra.Command, name string, f createFlags) error {
	req := &wigglev1.CreateKeyRequest{Name: name, Roles: f.roles, Permissions: f.permissions, CertificateSubject: f.certificate}
	if len(f.roles)+len(f.permissions) == 0 {
		return shell.Usage(cmd, errors.New("say what it may do: --role worker, or --permission instance.start:orders"))
	}
	if _, err := permission.NewSet(f.permissions); err != nil {
		return shell.Usage(cmd, err)
	}
	if f.expires != "" {
		lasts, err := duration(f.expires)
		if err != nil || lasts == 0 {
			return shell.Usage(cmd, fmt.Errorf("--expires: %q is no time that a key lasts: use 90d or 12h", f.expires))
		}
		req.Lasts = durationpb.New(lasts)
	}
	return p.with(cmd, func(ctx context.Context, s services) error {
		res, err := s.keys.CreateKey(ctx, req)
		if err != nil {
			return wiggle.AsError("create key "+name, err)
		}
		return p.printSecret(res.GetKey(), res.GetSecret(), f.quiet)
	})
}

// secretJSON is what `wiggle keys create` and rotate print with -o json: the only documents with a secret.
type secretJSON struct {
	Key keyJSON `json:"key"`
	// Secret is absent for a key that is a certificate.
	Secret string `json:"secret,omitempty"`
}

func (p *program) printSecret(k *wigglev1.Key, secret string, quiet bool) error {
	if p.JSON() {
		return p.PrintJSON(secretJSON{toKeyJSON(k), secret})
	}
	if !quiet {
		p.tellf("key %s (%s)", k.GetName(), k.GetId())
		if k.GetExpiresAt() != nil {
			p.tellf(", until %s", p.when(k.GetExpiresAt()))
		}
		switch {
		case secret == "":
			p.tellf(": certificates with the subject %s\n", plain(k.GetCertificateSubject()))
		case k.GetOldSecretUntil() != nil:
			p.tellf("; the secret before works until %s\n", p.when(k.GetOldSecretUntil()))
		default:
			p.tellf("\n")
		}
		if secret != "" {
			p.tellf("Keep its secret now, it cannot be read again. Programs take it from WIGGLE_API_KEY, or from the file that\n" +
				"WIGGLE_API_KEY_FILE names.\n")
		}
	}
	if secret != "" {
		p.printf("%s\n", secret)
	}
	return nil
}

func newKeysRotate(p *program) *cobra.Command {
	var f shell.Confirmation
	overlap, quiet := "", false
	cmd := &cobra.Command{
		Use:   "rotate KEY",
		Short: "Give a key another secret, and print it this once",
		Long: `Give a key, named by its name or id, another secret, which is printed as that of a new key is. The
one before works on for the overlap, in which programs are given the new one. A secret that others may
know is ended at once with --overlap 0.`,
		Example: `  wiggle keys rotate shop-worker --overlap 2h > key.txt
  wiggle keys rotate ci --overlap 0 --yes`,
		Args: shell.Args(1, 1, "the KEY, by name or id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &wigglev1.RotateKeyRequest{Key: args[0]}
			if overlap != "" {
				d, err := duration(overlap)
				if err != nil {
					return shell.Usage(cmd, fmt.Errorf("--overlap: %w", err))
				}
				req.Overlap = durationpb.New(d)
				if d == 0 {
					if err := f.Confirm(p.Shell, cmd, "end the present secret of "+args[0]+" at once?"); err != nil {
						return err
					}
				}
			}
			return p.with(cmd, func(ctx context.Context, s services) error {
				res, err := s.keys.RotateKey(ctx, req)
				if err != nil {
					return wiggle.AsError("rotate key "+args[0], err)
				}
				return p.printSecret(res.GetKey(), res.GetSecret(), quiet)
			})
		},
	}
	cmd.Flags().StringVar(&overlap, "overlap", "", "how long the secret before works on, a `duration` up to 30d (default 24h)")
	addQuiet(cmd, &quiet)
	f.Add(cmd)
	return cmd
}

func newKeysRevoke(p *program) *cobra.Command {
	var f shell.Confirmation
	cmd := &cobra.Command{
		Use:     "revoke KEY",
		Short:   "End a key: within a second it is accepted nowhere",
		Example: `  wiggle keys revoke ci`,
		Args:    shell.Args(1, 1, "the KEY, by name or id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.Confirm(p.Shell, cmd, "revoke key "+args[0]+"? What calls with it fails from then on."); err != nil {
				return err
			}
			return p.with(cmd, func(ctx context.Context, s services) error {
				if _, err := s.keys.RevokeKey(ctx, &wigglev1.RevokeKeyRequest{Key: args[0]}); err != nil {
					return wiggle.AsError("revoke key "+args[0], err)
				}
				return p.done(map[string]any{"key": args[0], "revoked": true}, "key %s is revoked\n", args[0])
			})
		},
	}
	f.Add(cmd)
	return cmd
}
