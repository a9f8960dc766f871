package auth

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// AUT-7: unknown, known and disabled names take the same reads and hashes, and end in the same error.
func TestUnknownNamesAreAsKnown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	i.account(root, "gone", "instance.read")
	disabled := true
	if _, err := i.UpdateAccount(root, &wigglev1.UpdateAccountRequest{Name: "gone", Disabled: &disabled}); err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, name := range []string{rootName, "nobody", "gone", "a\x00b"} {
		word := "not the password"
		if name == "gone" {
			word = someWord
		}
		before := s.hashes.Load()
		_, err := i.SignIn(t.Context(), &wigglev1.SignInRequest{Name: name, Password: word})
		s.wantCode(name, err, faults.CodeUnauthenticated)
		if n := s.hashes.Load() - before; n != 1 {
			t.Errorf("%s took %d hashes", name, n)
		}
		texts = append(texts, err.Error())
	}
	for _, text := range texts {
		if text != texts[0] {
			t.Errorf("the errors differ: %q", texts)
		}
	}
}

// AUT-7: limits hold over several processes, per account and address; a try that is refused costs no hash; another address is
// not locked out; and whoever exhausts the limit of an account from everywhere does not lock out its owner.
func TestLimitsOverProcesses(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, b := s.start(withRoot), s.start()
	a.signIn(rootName, rootWord) // from 192.0.2.1, which is known from now on
	pair, account, _ := policy.TryLimits()
	try := func(i *instance, address, word string) error {
		_, err := i.SignIn(from(t.Context(), address), &wigglev1.SignInRequest{Name: rootName, Password: word})
		return err
	}
	both := []*instance{a, b}
	for n := range pair.Burst {
		s.wantCode("a wrong password", try(both[n%2], "198.51.100.7", "wrong"), faults.CodeUnauthenticated)
	}
	before := s.hashes.Load()
	for _, i := range both {
		err := try(i, "198.51.100.7:4711", rootWord)
		s.wantCode("one more", err, faults.CodeResourceExhausted)
		fault, _ := errors.AsType[*faults.Error](err)
		if after, ok := fault.RetryAfter(); !ok || after <= 0 || after > pair.Every {
			t.Errorf("try again after %v, %v", after, ok)
		}
	}
	if n := s.hashes.Load() - before; n != 0 {
		t.Errorf("refused tries took %d hashes", n)
	}
	if err := try(b, "198.51.100.8", rootWord); err != nil {
		t.Errorf("another address: %v", err)
	}
	for n := pair.Burst + 2; n < account.Burst; n++ { // those before, and from 198.51.100.8
		s.wantCode("from everywhere", try(both[n%2], fmt.Sprintf("203.0.113.%d", n), "wrong"), faults.CodeUnauthenticated)
	}
	s.wantCode("the account's limit", try(a, "203.0.113.254", rootWord), faults.CodeResourceExhausted)
	if err := try(a, "192.0.2.1", rootWord); err != nil {
		t.Errorf("the owner is locked out: %v", err)
	}
	s.clock.Advance(pair.Every)
	if err := try(a, "198.51.100.7", rootWord); err != nil {
		t.Errorf("after a while: %v", err)
	}
}

// AUT-2: an imported hash is accepted and replaced at the first sign-in, and a session minted that nobody could have fixed.
func TestImportedHashesAreUpgraded(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	first := i.signIn(rootName, rootWord)
	root := i.as(first)
	const imported = "$pbkdf2-sha256$i=10000,l=32$c29tZXNhbHRzb21lc2FsdA$PhDZpTri2KZk3CJjksQCcDDaGf36KxfkgWElmz5yFVA"
	res, err := i.ImportAccounts(root, &wigglev1.ImportAccountsRequest{Accounts: []*wigglev1.ImportedAccount{
		{Name: "ada", PasswordHash: imported, Roles: []string{"viewer"}}, {Name: "Root", PasswordHash: imported},
	}})
	if err != nil || res.GetCreated() != 1 || len(res.GetExisting()) != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	_, err = i.ImportAccounts(root, &wigglev1.ImportAccountsRequest{Accounts: []*wigglev1.ImportedAccount{
		{Name: "bob", PasswordHash: strings.Replace(imported, "i=10000", "i=99999999", 1)},
	}})
	s.wantCode("a hash that would burn the machine", err, faults.CodeInvalidArgument)
	i.signIn("ada", "password")
	var stored string
	const hashSQL = "select c.secret from credentials c join accounts a on a.id = c.account_id where a.key = 'ada'"
	if err := s.database.QueryRow(t.Context(), hashSQL).Scan(&stored); err != nil || !strings.HasPrefix(stored, "$argon2id$") {
		t.Errorf("%s, %v", stored, err)
	}
	if again := i.signIn("ada", "password"); again == first {
		t.Error("two sign-ins have one token")
	}
}

// AUT-7: changing a password asks for the present one, and ends the account's other sessions.
func TestChangePassword(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	mine, other := i.signIn(rootName, rootWord), i.signIn(rootName, rootWord)
	me := i.as(mine)
	const next = "quite another secret"
	_, err := i.ChangePassword(me, &wigglev1.ChangePasswordRequest{OldPassword: "wrong", NewPassword: next})
	s.wantCode("a wrong password", err, faults.CodePermissionDenied)
	_, err = i.ChangePassword(me, &wigglev1.ChangePasswordRequest{OldPassword: rootWord, NewPassword: "short"})
	s.wantCode("a short password", err, faults.CodeInvalidArgument)
	if _, err := i.ChangePassword(me, &wigglev1.ChangePasswordRequest{OldPassword: rootWord, NewPassword: next}); err != nil {
		t.Fatal(err)
	}
	if _, err := i.authenticate(mine); err != nil {
		t.Errorf("the session itself: %v", err)
	}
	_, err = i.authenticate(other)
	s.wantCode("the other session", err, faults.CodeUnauthenticated)
	_, err = i.SignIn(t.Context(), &wigglev1.SignInRequest{Name: rootName, Password: rootWord})
	s.wantCode("the old password", err, faults.CodeUnauthenticated)
	i.signIn(rootName, next)
}

// AUT-2: sessions are listed and revoked, and end when they are idle or old.
func TestSessions(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	mine, other := i.signIn(rootName, rootWord), i.signIn(rootName, rootWord)
	me := i.as(mine)
	list, err := i.ListSessions(me, &wigglev1.ListSessionsRequest{})
	if err != nil || len(list.GetSessions()) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, session := range list.GetSessions() {
		if session.GetAddress() != "192.0.2.1" || session.GetUserAgent() != "test" {
			t.Errorf("session %v", session)
		}
		if session.GetCurrent() {
			continue
		}
		if _, err := i.RevokeSession(me, &wigglev1.RevokeSessionRequest{SessionId: session.GetId()}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = i.authenticate(other)
	s.wantCode("a revoked session", err, faults.CodeUnauthenticated)
	// Used every few hours it lives for a week; then it is over.
	for range 7 * 24 / 8 {
		if _, err := i.authenticate(mine); err != nil {
			t.Fatalf("a session in use: %v", err)
		}
		s.clock.Advance(8 * time.Hour)
	}
	_, err = i.authenticate(mine)
	s.wantCode("a session of a week", err, faults.CodeUnauthenticated)
	idle := i.signIn(rootName, rootWord)
	s.clock.Advance(defaultSessionIdle)
	_, err = i.authenticate(idle)
	s.wantCode("an idle session", err, faults.CodeUnauthenticated)
	out := i.signIn(rootName, rootWord)
	if _, err := i.SignOut(i.as(out), &wigglev1.SignOutRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err = i.authenticate(out)
	s.wantCode("a session that signed out", err, faults.CodeUnauthenticated)
}

// AUT-2: after a rotation both secrets work until the overlap is over.
func TestRotationOverlaps(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	made, err := i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := i.RotateKey(root, &wigglev1.RotateKeyRequest{Key: made.GetKey().GetId(), Overlap: durationpb.New(time.Hour)})
	if err != nil || rotated.GetKey().GetOldSecretUntil() == nil {
		t.Fatalf("%v, %v", rotated, err)
	}
	s.clock.Advance(time.Hour - time.Microsecond)
	p, err := i.authenticate(made.GetSecret())
	if err != nil || !p.GetExpiresAt().AsTime().Equal(rotated.GetKey().GetOldSecretUntil().AsTime()) {
		t.Errorf("the old secret within the overlap: %v, %v", p, err)
	}
	if p, err := i.authenticate(rotated.GetSecret()); err != nil || p.GetExpiresAt() != nil {
		t.Errorf("the new secret: %v, %v", p, err)
	}
	s.clock.Advance(time.Microsecond)
	_, err = i.authenticate(made.GetSecret())
	s.wantCode("the old secret after the overlap", err, faults.CodeUnauthenticated)
	at := func(overlap *durationpb.Duration) error {
		_, err := i.RotateKey(root, &wigglev1.RotateKeyRequest{Key: "ci", Overlap: overlap})
		return err
	}
	s.wantCode("too long an overlap", at(durationpb.New(policy.MaxOverlap+1)), faults.CodeInvalidArgument)
	s.wantCode("a negative overlap", at(durationpb.New(-1)), faults.CodeInvalidArgument)
	if err := at(durationpb.New(0)); err != nil {
		t.Fatal(err)
	}
	_, err = i.authenticate(rotated.GetSecret())
	s.wantCode("the secret before a rotation without overlap", err, faults.CodeUnauthenticated)
}

// The last use is written once a minute, however often a credential is shown.
func TestUseIsWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	made, err := i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: "ci", CertificateSubject: "CN=worker-7"})
	if err != nil || made.GetSecret() != "" {
		t.Fatalf("%v, %v", made, err)
	}
	version := func() (v string) {
		t.Helper()
		if err := s.database.QueryRow(t.Context(), "select xmin::text from keys").Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	show := func() {
		t.Helper()
		res, err := i.Authenticate(t.Context(), &internalv1.AuthenticateRequest{
			Credential: &internalv1.AuthenticateRequest_CertificateSubject{CertificateSubject: "CN=worker-7"},
		})
		if err != nil || res.GetPrincipal().GetName() != "ci" {
			t.Fatalf("%v, %v", res, err)
		}
	}
	unused := version()
	show()
	used := version()
	if used == unused {
		t.Error("the first use is not written")
	}
	s.clock.Advance(policy.TouchEvery - time.Microsecond)
	show()
	if version() != used {
		t.Error("a use within a minute is written")
	}
	s.clock.Advance(time.Microsecond)
	show()
	if version() == used {
		t.Error("a use after a minute is not written")
	}
}

var setupToken = regexp.MustCompile(`wgi_\w+`)

// printed is standard error of processes.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *printed) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(text)
}

func (p *printed) tokens() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for line := range strings.Lines(p.text.String()) {
		if token := setupToken.FindString(line); token != "" {
			list = append(list, token)
		}
	}
	return list
}

// AUT-7: of several processes that start at once one prints the set-up link; it works once, for a day, and is not logged.
func TestSetUpOnce(t *testing.T) {
	t.Parallel()
	s, out := newScene(t), &printed{}
	withSetUp := func(c *Config) { c.SetUp = out }
	var all []*instance
	for range 3 {
		all = append(all, s.begin(withSetUp))
	}
	for _, i := range all {
		s.await("the auth shard", i.service.ready)
	}
	if tokens := out.tokens(); len(tokens) != 1 {
		t.Fatalf("printed %d links", len(tokens))
	}
	s.clock.Advance(24*time.Hour - time.Microsecond)
	s.start(withSetUp)
	if tokens := out.tokens(); len(tokens) != 1 {
		t.Fatalf("printed %d links while one is valid", len(tokens))
	}
	s.clock.Advance(time.Microsecond)
	i := s.start(withSetUp)
	tokens := out.tokens()
	if len(tokens) != 2 {
		t.Fatalf("printed %d links after a day", len(tokens))
	}
	setUp := func(token, name string) error {
		_, err := i.SetUp(t.Context(), &wigglev1.SetUpRequest{Token: token, Name: name, Password: someWord})
		return err
	}
	s.wantCode("the link that is over", setUp(tokens[0], "ada"), faults.CodeUnauthenticated)
	s.wantCode("a made-up token", setUp(tokens[1][:len(tokens[1])-1]+"0", "ada"), faults.CodeUnauthenticated)
	results := make(chan error, 4)
	for n := range cap(results) { // at the same time, on several processes
		go func() {
			_, err := all[n%len(all)].SetUp(t.Context(), &wigglev1.SetUpRequest{
				Token: tokens[1], Name: fmt.Sprintf("ada%d", n), Password: someWord,
			})
			results <- err
		}()
	}
	made := 0
	for range cap(results) {
		if err := <-results; err == nil {
			made++
		} else {
			s.wantCode("one of several", err, faults.CodeUnauthenticated)
		}
	}
	if made != 1 {
		t.Errorf("made %d administrators", made)
	}
	s.wantCode("a replay", setUp(tokens[1], "eve"), faults.CodeUnauthenticated)
	s.start(withSetUp)
	if n := len(out.tokens()); n != 2 {
		t.Errorf("printed %d links where there is an administrator", n)
	}
	for _, token := range tokens {
		if strings.Contains(s.logs.String(), token) {
			t.Error("the log has the link")
		}
	}
}

// AUT-7: several processes that are told of a first administrator make one; later ones leave it as it is.
func TestFirstAdminFromTheEnvironment(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var all []*instance
	for range 3 {
		all = append(all, s.begin(withRoot))
	}
	for _, i := range all {
		s.await("the auth shard", i.service.ready)
	}
	root := all[0].as(all[0].signIn(rootName, rootWord))
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("another password\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	i := s.start(func(c *Config) { c.AdminName, c.AdminPasswordFile = "other", file })
	accounts, err := i.ListAccounts(root, &wigglev1.ListAccountsRequest{})
	if err != nil || len(accounts.GetAccounts()) != 1 {
		t.Errorf("%v, %v", accounts, err)
	}
	if n := strings.Count(s.logs.String(), "made the first administrator"); n != 1 {
		t.Errorf("made %d", n)
	}
}
