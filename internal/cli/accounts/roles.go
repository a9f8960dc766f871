package accounts

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/permission"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// completionTime bounds what the shell waits for names.
const completionTime = 2 * time.Second

func newRoles(p *program) *cobra.Command {
	cmd := shell.Family(&cobra.Command{
		Use:   "roles",
		Short: "Look after roles: named sets of permissions",
	})
	cmd.AddCommand(newRolesList(p), newRolesPut(p), newRolesDelete(p))
	return cmd
}

// roleJSON is a role in a document.
type roleJSON struct {
	Name        string   `json:"name"`
	Permissions []string `json:"permissions"`
	Description string   `json:"description,omitempty"`
	BuiltIn     bool     `json:"built_in"`
}

func toRoleJSON(r *wigglev1.Role) roleJSON {
	return roleJSON{r.GetName(), listJSON(r.GetPermissions()), r.GetDescription(), r.GetBuiltIn()}
}

func newRolesList(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List roles and what they allow",
		Args:  shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.with(cmd, func(ctx context.Context, s services) error {
				res, err := s.roles.ListRoles(ctx, &wigglev1.ListRolesRequest{})
				if err != nil {
					return wiggle.AsError("list roles", err)
				}
				return p.printRoles(res.GetRoles())
			})
		},
	}
}

func (p *program) printRoles(list []*wigglev1.Role) error {
	if p.JSON() {
		found := make([]roleJSON, 0, len(list))
		for _, r := range list {
			found = append(found, toRoleJSON(r))
		}
		return p.PrintJSON(map[string]any{"roles": found})
	}
	t := p.Table("ROLE", "FOR", "ALLOWS")
	for _, r := range list {
		what := orDash(r.GetDescription())
		if r.GetBuiltIn() {
			what = strings.TrimSpace(plain(r.GetDescription()) + " (built in)")
		}
		permissions := r.GetPermissions()
		if len(permissions) == 0 {
			permissions = []string{"-"}
		}
		t.Row(r.GetName(), what, permissions[0])
		for _, permission := range permissions[1:] {
			t.Row("", "", permission)
		}
	}
	t.Flush()
	return nil
}

func newRolesPut(p *program) *cobra.Command {
	role := &wigglev1.Role{}
	cmd := &cobra.Command{
		Use:   "put NAME",
		Short: "Make a role, or change one",
		Long: `Make a role, or put other permissions in the place of those that it has; whoever has the role is held to
them within a second. A permission is an action, such as instance.start, and behind a colon the scope
that it is limited to, namespace/workflow or for tasks namespace/queue. Each part may end in *:

  instance.read                      everywhere
  instance.*:orders                  everything about instances of the namespace orders
  instance.start:orders/refund*      starts of its workflows whose names begin with refund
  task.poll:*/gpu                    work of the queue gpu, of every namespace

The roles that Wiggle brings along cannot be changed, and nobody can give what they may not do
themselves.`,
		Example: `  wiggle roles put orders-support --permission instance.read:orders --permission instance.cancel:orders/refund \
    --description "reads orders, cancels refunds"`,
		Args: shell.Args(1, 1, "the NAME of the role"),
		RunE: func(cmd *cobra.Command, args []string) error {
			role.Name = args[0]
			if len(role.GetPermissions()) == 0 {
				return shell.Usage(cmd, errors.New("say what it allows: --permission instance.read:orders"))
			}
			if _, err := permission.NewSet(role.GetPermissions()); err != nil {
				return shell.Usage(cmd, err)
			}
			return p.with(cmd, func(ctx context.Context, s services) error {
				res, err := s.roles.PutRole(ctx, &wigglev1.PutRoleRequest{Role: role})
				if err != nil {
					return wiggle.AsError("put role "+args[0], err)
				}
				if p.JSON() {
					return p.PrintJSON(toRoleJSON(res.GetRole()))
				}
				return p.printRoles([]*wigglev1.Role{res.GetRole()})
			})
		},
	}
	cmd.Flags().StringArrayVar(&role.Permissions, "permission", nil, "a `permission`; several by repeating it")
	cmd.Flags().StringVar(&role.Description, "description", "", "what it is for")
	p.completeRoles(cmd)
	return cmd
}

func newRolesDelete(p *program) *cobra.Command {
	var f shell.Confirmation
	cmd := &cobra.Command{
		Use:     "delete NAME",
		Short:   "Remove a role that no account and no key has",
		Example: `  wiggle roles delete orders-support`,
		Args:    shell.Args(1, 1, "the NAME of a role"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.Confirm(p.Shell, cmd, "delete role "+args[0]+"?"); err != nil {
				return err
			}
			return p.with(cmd, func(ctx context.Context, s services) error {
				if _, err := s.roles.DeleteRole(ctx, &wigglev1.DeleteRoleRequest{Name: args[0]}); err != nil {
					return wiggle.AsError("delete role "+args[0], err)
				}
				return p.done(map[string]any{"name": args[0], "deleted": true}, "role %s is deleted\n", args[0])
			})
		},
	}
	f.Add(cmd)
	p.completeRoles(cmd)
	return cmd
}

// rolesFlag adds the flag --role, which the shell completes.
func (p *program) rolesFlag(cmd *cobra.Command, roles *[]string, doc string) {
	cmd.Flags().StringSliceVar(roles, "role", nil, doc)
	_ = cmd.RegisterFlagCompletionFunc("role", p.roleNames) // the flag is there
}

// completeRoles has the shell complete the first argument.
func (p *program) completeRoles(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return p.roleNames(cmd, args, begun)
	}
}

// roleNames are the roles there are; none if the server does not say so at once.
func (p *program) roleNames(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	_ = p.with(cmd, func(ctx context.Context, s services) error { // the shell has no place for an error
		ctx, cancel := context.WithTimeout(ctx, completionTime)
		defer cancel()
		res, err := s.roles.ListRoles(ctx, &wigglev1.ListRolesRequest{})
		for _, r := range res.GetRoles() {
			names = append(names, cobra.CompletionWithDesc(r.GetName(), plain(r.GetDescription())))
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
