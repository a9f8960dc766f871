package auth

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
)

// AUT-3: nobody can give, take over or act upon what is beyond what they have.
func TestEscalation(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	keys := i.as(i.account(root, "keymaster", "key.manage", "key.read", "instance.*:orders/*"))
	roles := i.as(i.account(root, "rolemaster", "role.manage", "role.read"))
	users := i.as(i.account(root, "usermaster", "user.manage", "user.read"))
	adminKey, err := i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: "adminkey", Roles: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	disabled := true
	for what, try := range map[string]func() error{
		"a key of the role admin": func() error {
			_, err := i.CreateKey(keys, &wigglev1.CreateKeyRequest{Name: "k1", Roles: []string{"admin"}})
			return err
		},
		"a key of every permission": func() error {
			_, err := i.CreateKey(keys, &wigglev1.CreateKeyRequest{Name: "k2", Permissions: []string{"*"}})
			return err
		},
		"a key of a wider scope": func() error {
			_, err := i.CreateKey(keys, &wigglev1.CreateKeyRequest{Name: "k3", Permissions: []string{"instance.read"}})
			return err
		},
		"the secret of an administrator's key": func() error {
			_, err := i.RotateKey(keys, &wigglev1.RotateKeyRequest{Key: adminKey.GetKey().GetId()})
			return err
		},
		"a role of every permission": func() error {
			_, err := i.PutRole(roles, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "boss", Permissions: []string{"*"}}})
			return err
		},
		"more for the own role": func() error {
			_, err := i.PutRole(roles, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "rolemaster", Permissions: []string{"role.*", "user.manage"}}})
			return err
		},
		"less for another's role": func() error {
			_, err := i.PutRole(roles, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "usermaster"}})
			return err
		},
		"an account of the role admin": func() error {
			_, err := i.CreateAccount(users, &wigglev1.CreateAccountRequest{Name: "eve", Password: someWord, Roles: []string{"admin"}})
			return err
		},
		"an imported account of the role admin": func() error {
			_, err := i.ImportAccounts(users, &wigglev1.ImportAccountsRequest{Accounts: []*wigglev1.ImportedAccount{{
				Name: "eve", Roles: []string{"admin"}, PasswordHash: "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
			}}})
			return err
		},
		"the role admin for itself": func() error {
			_, err := i.UpdateAccount(users, &wigglev1.UpdateAccountRequest{Name: "usermaster", Roles: &wigglev1.RoleNames{Names: []string{"admin"}}})
			return err
		},
		"the password of an administrator": func() error {
			_, err := i.ResetPassword(users, &wigglev1.ResetPasswordRequest{Name: rootName, Password: someWord})
			return err
		},
		"the password of who has something else": func() error {
			_, err := i.ResetPassword(users, &wigglev1.ResetPasswordRequest{Name: "keymaster", Password: someWord})
			return err
		},
		"an administrator disabled": func() error {
			_, err := i.UpdateAccount(users, &wigglev1.UpdateAccountRequest{Name: rootName, Disabled: &disabled})
			return err
		},
		"an administrator deleted": func() error {
			_, err := i.DeleteAccount(users, &wigglev1.DeleteAccountRequest{Name: rootName})
			return err
		},
		"what it has no permission for at all": func() error {
			_, err := i.ListAuditEntries(users, &wigglev1.ListAuditEntriesRequest{})
			return err
		},
	} {
		s.wantCode(what, try(), faults.CodePermissionDenied)
	}
	// What they have they may give.
	if _, err := i.CreateKey(keys, &wigglev1.CreateKeyRequest{Name: "mine", Permissions: []string{"instance.read:orders/refund"}}); err != nil {
		t.Error(err)
	}
	if _, err := i.CreateAccount(users, &wigglev1.CreateAccountRequest{Name: "peer", Password: someWord, Roles: []string{"usermaster"}}); err != nil {
		t.Error(err)
	}
	denied, err := i.ListAuditEntries(root, &wigglev1.ListAuditEntriesRequest{Filter: &wigglev1.AuditFilter{Denied: true, Principal: "user/usermaster"}})
	if err != nil || len(denied.GetEntries()) != 7 { // AUT-8; the last of the tries above is the router's to record
		t.Errorf("the audit log has %d denied tries of usermaster: %v, %v", len(denied.GetEntries()), denied, err)
	}
}

// A caller whom the router has cached has lost its rights in the database: it does not use the moment.
func TestStaleCallersCannotChange(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	made, err := i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: "ci", Roles: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	key, user := i.as(made.GetSecret()), i.as(i.account(root, "boss", "*"))
	if _, err := i.RevokeKey(root, &wigglev1.RevokeKeyRequest{Key: "ci"}); err != nil {
		t.Fatal(err)
	}
	_, err = i.CreateKey(key, &wigglev1.CreateKeyRequest{Name: "again", Roles: []string{"admin"}})
	s.wantCode("a revoked key makes another", err, faults.CodeUnauthenticated)
	if _, err := i.PutRole(root, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "boss", Permissions: []string{"key.read"}}}); err != nil {
		t.Fatal(err)
	}
	_, err = i.CreateKey(user, &wigglev1.CreateKeyRequest{Name: "again"})
	s.wantCode("a demoted account makes a key", err, faults.CodePermissionDenied)
	_, err = i.CreateKey(t.Context(), &wigglev1.CreateKeyRequest{Name: "again"})
	s.wantCode("nobody makes a key", err, faults.CodeUnauthenticated)
	for _, p := range []*identity.Principal{identity.Anonymous(), identity.Service()} {
		if _, err := i.CreateKey(identity.With(t.Context(), p), &wigglev1.CreateKeyRequest{Name: p.String()}); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// AUT-7: the last administrator stays, whichever way somebody tries.
func TestLastAdminStays(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	i.account(root, "boss", "*")
	set := func(name string, disabled bool, roles ...string) error {
		req := &wigglev1.UpdateAccountRequest{Name: name, Disabled: &disabled}
		if roles != nil {
			req.Roles = &wigglev1.RoleNames{Names: roles}
		}
		_, err := i.UpdateAccount(root, req)
		return err
	}
	role := func(permissions ...string) error {
		_, err := i.PutRole(root, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "boss", Permissions: permissions}})
		return err
	}
	if err := set(rootName, false, "boss"); err != nil {
		t.Fatal(err)
	}
	s.wantCode("the role is emptied", role("user.*"), faults.CodeFailedPrecondition)
	if err := set("boss", true); err != nil {
		t.Fatal(err)
	}
	s.wantCode("disabled", set(rootName, true), faults.CodeFailedPrecondition)
	s.wantCode("demoted", set(rootName, false, "viewer"), faults.CodeFailedPrecondition)
	_, err := i.DeleteAccount(root, &wigglev1.DeleteAccountRequest{Name: rootName})
	s.wantCode("deleted", err, faults.CodeFailedPrecondition)
	if err := set("boss", false); err != nil {
		t.Fatal(err)
	}
	if _, err := i.DeleteAccount(root, &wigglev1.DeleteAccountRequest{Name: rootName}); err != nil {
		t.Errorf("one of two: %v", err)
	}
}

// AUT-7: two administrators delete each other at the same time, on two processes: one must fail, every time.
func TestAdminsDeleteEachOther(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, b := s.start(withRoot), s.start()
	service := identity.With(t.Context(), identity.Service())
	for round := range 10 {
		name := func(n int) string { return fmt.Sprintf("admin%d-%d", round, n) }
		var as [2]context.Context
		for n := range as {
			_, err := a.CreateAccount(service, &wigglev1.CreateAccountRequest{Name: name(n), Password: someWord, Roles: []string{"admin"}})
			if err != nil {
				t.Fatal(err)
			}
			as[n] = a.as(a.signIn(name(n), someWord)) //nolint:fatcontext // one context for each
		}
		if round == 0 {
			if _, err := a.DeleteAccount(service, &wigglev1.DeleteAccountRequest{Name: rootName}); err != nil {
				t.Fatal(err)
			}
		} else if err := deleteAll(service, a, round-1); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var errs [2]error
		all.Go(func() { _, errs[0] = a.DeleteAccount(as[0], &wigglev1.DeleteAccountRequest{Name: name(1)}) })
		all.Go(func() { _, errs[1] = b.DeleteAccount(as[1], &wigglev1.DeleteAccountRequest{Name: name(0)}) })
		all.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("round %d: %v", round, errs)
		}
	}
}

// deleteAll removes what a round has left.
func deleteAll(ctx context.Context, i *instance, round int) error {
	for n := range 2 {
		_, err := i.DeleteAccount(ctx, &wigglev1.DeleteAccountRequest{Name: fmt.Sprintf("admin%d-%d", round, n)})
		if err != nil && faults.CodeOf(err) != faults.CodeNotFound {
			return err
		}
	}
	return nil
}

// AUT-5: revisions have no gaps and come in the order of commits: whoever reads behind the last one that it has seen misses
// nothing, whatever goes on.
func TestRevisionsUnderConcurrency(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, b := s.start(withRoot), s.start()
	root := a.as(a.signIn(rootName, rootWord))
	const writers, each = 4, 10
	var all sync.WaitGroup
	var mu sync.Mutex
	revoked := map[string]bool{}
	for w := range writers {
		i := []*instance{a, b}[w%2]
		all.Go(func() {
			for n := range each {
				made, err := i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: fmt.Sprintf("k%d-%d", w, n)})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := i.RevokeKey(root, &wigglev1.RevokeKeyRequest{Key: made.GetKey().GetId()}); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				revoked[made.GetKey().GetId()] = true
				mu.Unlock()
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	seen, last := map[string]bool{}, int64(0)
	for finished := false; !finished; {
		select {
		case <-done:
			finished = true // and one look more
		default:
		}
		changes, err := b.ListChanges(t.Context(), &internalv1.ListChangesRequest{After: last})
		if err != nil {
			t.Fatal(err)
		}
		if n := int64(len(changes.GetCredentialIds())); n != changes.GetRevision()-last || changes.GetAll() {
			t.Fatalf("behind %d there are %d changes up to %d, all %v", last, n, changes.GetRevision(), changes.GetAll())
		}
		for _, id := range changes.GetCredentialIds() {
			seen[id] = true
		}
		last = changes.GetRevision()
	}
	if last != writers*each || len(seen) != len(revoked) {
		t.Errorf("revision %d, %d seen of %d", last, len(seen), len(revoked))
	}
	ahead, err := a.ListChanges(t.Context(), &internalv1.ListChangesRequest{After: last + 1})
	if err != nil || !ahead.GetAll() {
		t.Errorf("who is ahead, as after a restore, is told %v, %v", ahead, err)
	}
}

// A deleted account takes its keys along, those too that they have made; a disabled one's are not valid meanwhile.
func TestKeysGoWithTheirAccount(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	ada := i.as(i.account(root, "ada", "key.*"))
	first, err := i.CreateKey(ada, &wigglev1.CreateKeyRequest{Name: "first", Permissions: []string{"key.*"}})
	if err != nil {
		t.Fatal(err)
	}
	second, err := i.CreateKey(i.as(first.GetSecret()), &wigglev1.CreateKeyRequest{Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	valid := func(want faults.Code) {
		t.Helper()
		for _, secret := range []string{first.GetSecret(), second.GetSecret()} {
			_, err := i.authenticate(secret)
			s.wantCode("a key of the account", err, want)
		}
	}
	set := func(disabled bool) {
		t.Helper()
		if _, err := i.UpdateAccount(root, &wigglev1.UpdateAccountRequest{Name: "ada", Disabled: &disabled}); err != nil {
			t.Fatal(err)
		}
	}
	set(true)
	valid(faults.CodeUnauthenticated)
	set(false)
	valid(faults.CodeOK)
	if _, err := i.DeleteAccount(root, &wigglev1.DeleteAccountRequest{Name: "ADA"}); err != nil {
		t.Fatal(err)
	}
	valid(faults.CodeUnauthenticated)
	changes, err := i.ListChanges(t.Context(), &internalv1.ListChangesRequest{After: 0})
	if err != nil || !changes.GetAll() { // a role was put
		t.Errorf("%v, %v", changes, err)
	}
	_, err = i.DeleteRole(root, &wigglev1.DeleteRoleRequest{Name: "admin"})
	s.wantCode("a built-in role deleted", err, faults.CodeFailedPrecondition)
	if _, err := i.DeleteRole(root, &wigglev1.DeleteRoleRequest{Name: "ada"}); err != nil {
		t.Errorf("a role that nobody has: %v", err)
	}
}

// A credential that is pasted whole where an id is asked for stands for its id; as a name or text it is refused. Neither an error
// nor the audit log has its secret.
func TestPastedCredentials(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	made, err := i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: "leaked"})
	if err != nil {
		t.Fatal(err)
	}
	whole := made.GetSecret()
	secret := whole[len("wgk_0123456789abcdef_"):]
	_, err = i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: whole})
	s.wantCode("a key's name", err, faults.CodeInvalidArgument)
	_, err = i.PutRole(root, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "ci", Description: "has " + whole}})
	s.wantCode("a role's description", err, faults.CodeInvalidArgument)
	_, err = i.SignIn(t.Context(), &wigglev1.SignInRequest{Name: whole, Password: someWord})
	s.wantCode("the name of an account", err, faults.CodeInvalidArgument)
	for _, given := range []string{whole[:len(whole)-1], whole} { // one that was cut names the key as well
		if _, err := i.RotateKey(root, &wigglev1.RotateKeyRequest{Key: given}); err != nil {
			t.Errorf("rotate: %v", err)
		}
	}
	if _, err := i.RevokeKey(root, &wigglev1.RevokeKeyRequest{Key: whole}); err != nil {
		t.Errorf("revoke: %v", err)
	}
	_, err = i.RevokeKey(root, &wigglev1.RevokeKeyRequest{Key: whole})
	s.wantCode("again", err, faults.CodeNotFound)
	session := i.signIn(rootName, rootWord)
	if _, err := i.RevokeSession(root, &wigglev1.RevokeSessionRequest{SessionId: session}); err != nil {
		t.Errorf("a session: %v", err)
	}
	_, err = i.RecordAudit(t.Context(), &internalv1.RecordAuditRequest{Entries: []*wigglev1.AuditEntry{{Action: "x", Target: whole, Detail: whole}}})
	if err != nil {
		t.Fatal(err)
	}
	var rows string
	if err := s.database.QueryRow(t.Context(), "select string_agg(a::text, ' ') from audit a").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{rows, s.logs.String()} {
		if strings.Contains(text, secret[:20]) || strings.Contains(text, session[len("wgs_0123456789abcdef_"):]) {
			t.Errorf("a secret is in %s", text)
		}
	}
	if !strings.Contains(rows, "wgk_"+made.GetKey().GetId()+"_[hidden]") {
		t.Error("the audit log does not name the key by its id")
	}
}
