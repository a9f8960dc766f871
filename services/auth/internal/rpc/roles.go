package rpc

import (
	"context"
	"fmt"
	"slices"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/permission"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

const manageRoles = "role.manage"

// PutRole implements wigglev1connect.RoleServiceHandler. Whoever has the role gets what it says, so the caller must have that; and
// had what it said before, or a role of administrators could be emptied by others.
func (s *Server) PutRole(ctx context.Context, req *wigglev1.PutRoleRequest) (*wigglev1.PutRoleResponse, error) {
	put := req.GetRole()
	role := policy.Role{Name: put.GetName(), Description: put.GetDescription(), Permissions: distinct(put.GetPermissions())}
	if err := checkRole(role); err != nil {
		return nil, err
	}
	err := s.change(ctx, act{permission: manageRoles, action: "role.put", target: role.Name},
		func(ctx context.Context, c *change) error {
			old, _ := c.Roles.Find(role.Name)
			if old.BuiltIn {
				return builtIn(role.Name)
			}
			if err := checkActions("role.permissions", role.Permissions, old.Permissions); err != nil {
				return err
			}
			if err := c.beyond(old.Permissions); err != nil {
				return err
			}
			if err := c.beyond(role.Permissions); err != nil {
				return err
			}
			c.detail = fmt.Sprintf("permissions %v", role.Permissions)
			if err := c.PutRole(ctx, role); err != nil {
				return err
			}
			return c.keepsAdmin(ctx)
		})
	if err != nil {
		return nil, err
	}
	return &wigglev1.PutRoleResponse{Role: wireRole(role)}, nil
}

func checkRole(r policy.Role) error {
	var problems []*wigglev1.Problem
	if !policy.ValidRoleName(r.Name) {
		problems = append(problems, faults.Problem("role.name", "%q is no name of a role: lower-case letters, digits and -", r.Name))
	}
	for i, text := range r.Permissions {
		if _, err := permission.Parse(text); err != nil {
			problems = append(problems, faults.Problem(fmt.Sprintf("role.permissions[%d]", i), "%s", err.Error()))
		}
	}
	if problems != nil {
		return faults.Invalid(problems...)
	}
	return nil
}

// checkActions refuses permissions for nothing that there is, which are misspelt. Those of before stay as they are: a newer
// release may know what they are for.
func checkActions(field string, permissions, before []string) error {
	var problems []*wigglev1.Problem
	for i, text := range permissions {
		if slices.Contains(before, text) {
			continue
		}
		if err := knownActions().Check(text); err != nil {
			problems = append(problems, faults.Problem(fmt.Sprintf("%s[%d]", field, i), "%s", err.Error()))
		}
	}
	if problems != nil {
		return faults.Invalid(problems...)
	}
	return nil
}

func builtIn(role string) error {
	return faults.FailedPrecondition("role %s is built in and stays as it is: make another one", role)
}

// ListRoles implements wigglev1connect.RoleServiceHandler.
func (s *Server) ListRoles(ctx context.Context, _ *wigglev1.ListRolesRequest) (*wigglev1.ListRolesResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	roles, err := s.store.Roles(ctx)
	if err != nil {
		return nil, s.fault(err)
	}
	res := &wigglev1.ListRolesResponse{}
	for _, r := range roles {
		res.Roles = append(res.Roles, wireRole(r))
	}
	return res, nil
}

// DeleteRole implements wigglev1connect.RoleServiceHandler. Nobody has it, so nothing is taken from anybody.
func (s *Server) DeleteRole(ctx context.Context, req *wigglev1.DeleteRoleRequest) (*wigglev1.DeleteRoleResponse, error) {
	name := req.GetName()
	err := s.change(ctx, act{permission: manageRoles, action: "role.delete", target: name},
		func(ctx context.Context, c *change) error {
			role, ok := c.Roles.Find(name)
			switch {
			case !ok:
				return faults.NotFound("role", name)
			case role.BuiltIn:
				return builtIn(name)
			}
			account, key, err := c.RoleUsedBy(ctx, name)
			switch {
			case err != nil:
				return err
			case account != "":
				return faults.FailedPrecondition("role %s is given to account %s, perhaps among others: take it away first", name, account)
			case key != "":
				return faults.FailedPrecondition("role %s is given to key %s, perhaps among others: revoke it first", name, key)
			}
			return c.DeleteRole(ctx, name)
		})
	if err != nil {
		return nil, err
	}
	return &wigglev1.DeleteRoleResponse{}, nil
}
