package accounts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// importBatch is how many accounts a call brings over, as the protocol allows.
const importBatch = 1000

// importFile is what `wiggle users import` reads.
type importFile struct {
	Users []struct {
		Name         string   `json:"name"`
		PasswordHash string   `json:"password_hash"`
		Roles        []string `json:"roles"`
	} `json:"users"`
}

func newImport(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE",
		Short: "Make accounts with the password hashes of another system",
		Long: `Make accounts from a file, YAML or JSON, or from standard input (-). Each has the hash of its
password, in the PHC form: $argon2id$..., or $pbkdf2-sha256$i=600000,l=32$SALT$HASH, also
$pbkdf2-sha512$...; it is replaced by one of our own at the next sign-in. Names that exist are left as
they are, so an import that was broken off may be run again.

  users:
    - name: alice
      password_hash: $pbkdf2-sha256$i=600000,l=32$...
      roles: [operator]`,
		Example: `  wiggle users import users.yaml`,
		Args:    shell.Args(1, 1, "the FILE with the accounts"),
		RunE: func(cmd *cobra.Command, args []string) error {
			accounts, err := p.readImport(args[0])
			if err != nil {
				return err
			}
			return p.with(cmd, func(ctx context.Context, s services) error { return p.importAll(ctx, s, accounts) })
		},
	}
}

// readImport reads the file. Its errors repeat nothing of it.
func (p *program) readImport(name string) ([]*wigglev1.ImportedAccount, error) {
	text, err := p.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if !json.Valid(text) {
		converted, err := yaml.YAMLToJSON(text)
		if err != nil {
			return nil, shell.Failed("%s is neither YAML nor JSON", name)
		}
		text = converted
	}
	var file importFile
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		where := ""
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			where = " (" + e.Field + " is " + e.Value + ")"
		} else if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			where = " (there is no field " + field + ")"
		}
		return nil, shell.Failed("%s is no list of users%s: see wiggle users import --help", name, where)
	}
	accounts := make([]*wigglev1.ImportedAccount, 0, len(file.Users))
	for i, u := range file.Users {
		if u.Name == "" || u.PasswordHash == "" {
			return nil, shell.Failed("%s: user %d (%q) needs a name and a password_hash", name, i+1, u.Name)
		}
		accounts = append(accounts, &wigglev1.ImportedAccount{Name: u.Name, PasswordHash: u.PasswordHash, Roles: u.Roles})
	}
	if len(accounts) == 0 {
		return nil, shell.Failed("%s has no users: see wiggle users import --help", name)
	}
	return accounts, nil
}

// importedJSON is what `wiggle users import -o json` prints.
type importedJSON struct {
	Created  int      `json:"created"`
	Existing []string `json:"existing"`
}

func (p *program) importAll(ctx context.Context, s services, accounts []*wigglev1.ImportedAccount) error {
	sum := importedJSON{Existing: []string{}}
	for batch := range slices.Chunk(accounts, importBatch) {
		res, err := s.accounts.ImportAccounts(ctx, &wigglev1.ImportAccountsRequest{Accounts: batch})
		if err != nil {
			if sum.Created > 0 {
				p.tellf("wiggle: %d users were imported before it failed; run it again for the others\n", sum.Created)
			}
			return wiggle.AsError("import users", err)
		}
		sum.Created += int(res.GetCreated())
		sum.Existing = append(sum.Existing, res.GetExisting()...)
	}
	if p.JSON() {
		return p.PrintJSON(sum)
	}
	p.printf("users imported: %d\n", sum.Created)
	if len(sum.Existing) > 0 {
		p.printf("left as they are: %s\n", strings.Join(sum.Existing, ", "))
	}
	return nil
}
