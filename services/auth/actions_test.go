package auth

import (
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// A permission for an action that there is not is refused where it is given, and by the name of what was meant (AUT-3).
func TestMisspeltPermissions(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	role := func(permissions ...string) error {
		_, err := i.PutRole(root, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "support", Permissions: permissions}})
		return err
	}
	for misspelt, meant := range map[string]string{
		"instance.raed:orders/*": "there is no action instance.raed; the nearest is instance.read", "instence.*": "the nearest is instance.*",
		"task.polls": "the nearest is task.poll", "user.manage:orders": "leave out the scope",
	} {
		err := role("event.read", misspelt)
		s.wantCode("a role with "+misspelt, err, faults.CodeInvalidArgument)
		if err != nil && (!strings.Contains(err.Error(), meant) || !strings.Contains(err.Error(), "role.permissions[1]")) {
			t.Errorf("%s: %v", misspelt, err)
		}
		_, err = i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: "ci", Permissions: []string{misspelt}})
		s.wantCode("a key with "+misspelt, err, faults.CodeInvalidArgument)
		if err != nil && !strings.Contains(err.Error(), meant) {
			t.Errorf("%s: %v", misspelt, err)
		}
	}
	if err := role("*", "*:orders/*", "inst*", "instance.*:orders", "task.poll:*/gpu"); err != nil {
		t.Errorf("patterns of what there is: %v", err)
	}
}

// What a newer release has stored works on: what is known of it counts, and it may be put again as it is.
func TestStoredActionsOfANewerRelease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	token := i.account(root, "support", "instance.read:orders/*")
	if _, err := s.database.Exec(t.Context(), `update roles set permissions = permissions || '{moon.land}'::text[] where name = 'support'`); err != nil {
		t.Fatal(err)
	}
	p, err := i.authenticate(token)
	if err != nil || len(p.GetPermissions()) != 2 {
		t.Fatalf("%v, %v", p, err)
	}
	put := func(permissions ...string) error {
		_, err := i.PutRole(root, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "support", Permissions: permissions}})
		return err
	}
	if err := put("instance.read", "moon.land"); err != nil {
		t.Errorf("what the role had is put again: %v", err)
	}
	s.wantCode("more of it", put("instance.read", "moon.land", "moon.leave"), faults.CodeInvalidArgument)
	if err := put("instance.read"); err != nil {
		t.Error(err)
	}
	s.wantCode("it comes back", put("moon.land"), faults.CodeInvalidArgument)
}
