package auth

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/announce"
)

// AUT-8: who, from where, what, on which, allowed or not, when; in order, in pages, by every filter.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn(rootName, rootWord))
	_, err := i.SignIn(from(t.Context(), "203.0.113.9"), &wigglev1.SignInRequest{Name: "my secret, typed into the wrong field", Password: "x"})
	s.wantCode("a wrong name", err, faults.CodeUnauthenticated)
	s.clock.Advance(time.Hour)
	_, err = i.RecordAudit(t.Context(), &internalv1.RecordAuditRequest{Entries: []*wigglev1.AuditEntry{
		{Seq: 99, Principal: "key/ci", Address: "203.0.113.7", Action: "instance.cancel", Target: "wfi.s1.01k6", Allowed: true, TraceId: "t1"},
		{Principal: "key/ci", Action: "instance.read", Target: "orders/refund\x00", Detail: strings.Repeat("x", 5000)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	list := func(f *wigglev1.AuditFilter) string {
		t.Helper()
		var found []string
		req := &wigglev1.ListAuditEntriesRequest{Filter: f, PageSize: 1}
		last := int64(1 << 60)
		for {
			res, err := i.ListAuditEntries(root, req)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range res.GetEntries() {
				if e.GetSeq() >= last {
					t.Errorf("%d after %d", e.GetSeq(), last)
				}
				last = e.GetSeq()
				found = append(found, e.GetAction())
			}
			if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
				return strings.Join(found, " ")
			}
		}
	}
	later := timestamppb.New(s.clock.Now())
	for want, f := range map[string]*wigglev1.AuditFilter{
		"instance.read instance.cancel auth.sign_in auth.sign_in auth.set_up": nil,
		"instance.read instance.cancel":                                       {Principal: "key/ci"},
		"instance.cancel":                                                     {Text: "01K6 ci"},
		"auth.sign_in auth.sign_in auth.set_up":                               {Before: later},
		"instance.read":                                                       {Target: "orders/refund"},
		"instance.read auth.sign_in":                                          {Denied: true},
		"auth.sign_in auth.sign_in":                                           {Action: "auth.sign"},
		"":                                                                    {Action: "auth", From: later},
		"auth.sign_in":                                                        {Text: "203.0.113.9"},
	} {
		if got := list(f); got != want {
			t.Errorf("%v: %q, want %q", f, got, want)
		}
	}
	res, err := i.ListAuditEntries(root, &wigglev1.ListAuditEntriesRequest{})
	if err != nil || res.GetEntries()[0].GetSeq() != 5 || res.GetEntries()[1].GetTraceId() != "t1" || len(res.GetEntries()[0].GetDetail()) != 1024 {
		t.Errorf("%v, %v", res, err)
	}
	if strings.Contains(res.String(), "wrong field") {
		t.Error("the log has what was typed for a name")
	}
	_, err = i.ListAuditEntries(root, &wigglev1.ListAuditEntriesRequest{PageToken: "x"})
	s.wantCode("a page token that is none", err, faults.CodeInvalidArgument)
}

// AUT-8: nobody changes or removes an entry; retention removes old ones, and says so.
func TestAuditIsOnlyAppendedTo(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	i.signIn(rootName, rootWord)
	for _, sql := range []string{
		"update audit set detail = 'x'", "delete from audit", "truncate audit", "delete from audit where at < now() - interval '10 years' or seq = 1",
	} {
		if _, err := s.database.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s went through", sql)
		}
	}
	count := func() (n int) {
		t.Helper()
		if err := s.database.QueryRow(t.Context(), "select count(*) from audit").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	had := count()
	if err := i.service.store.TrimAudit(t.Context(), defaultAuditRetention); err != nil || count() != had {
		t.Errorf("%d of %d are left: %v", count(), had, err)
	}
	s.clock.Advance(defaultAuditRetention + time.Hour)
	root := i.as(i.signIn(rootName, rootWord))
	if err := i.service.store.TrimAudit(t.Context(), defaultAuditRetention); err != nil {
		t.Fatal(err)
	}
	res, err := i.ListAuditEntries(root, &wigglev1.ListAuditEntriesRequest{})
	if err != nil || len(res.GetEntries()) != 2 || res.GetEntries()[0].GetAction() != "audit.trim" || res.GetEntries()[0].GetTarget() != "1-2" {
		t.Errorf("%v, %v", res, err)
	}
	if err := i.service.store.Clean(t.Context()); err != nil {
		t.Error(err)
	}
	var sessions, attempts int
	const left = "select (select count(*) from sessions), (select count(*) from sign_in_attempts where full_at <= $1)"
	if err := s.database.QueryRow(t.Context(), left, s.clock.Now()).Scan(&sessions, &attempts); err != nil || sessions != 1 || attempts != 0 {
		t.Errorf("%d sessions and %d attempts are left: %v", sessions, attempts, err)
	}
}

// AUT-5: with NATS a change is told at once.
func TestChangesAreTold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	nats, err := devstack.StartNATS(devstack.NATSConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Stop)
	cfg := bus.Config{URLs: []string{nats.URL()}, Name: "test"}
	b, err := bus.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	heard := make(chan *internalv1.ListChangesResponse, 10)
	stop, err := b.Listen(announce.Subject, func(data []byte) {
		changes := &internalv1.ListChangesResponse{}
		if err := proto.Unmarshal(data, changes); err != nil {
			t.Error(err)
		}
		heard <- changes
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	i := s.start(withRoot, func(c *Config) { c.NATS = cfg })
	s.await("NATS", i.service.herald.Connected)
	root := i.as(i.signIn(rootName, rootWord))
	made, err := i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.RevokeKey(root, &wigglev1.RevokeKeyRequest{Key: "ci"}); err != nil {
		t.Fatal(err)
	}
	if changes := <-heard; changes.GetRevision() != 1 || !slices.Equal(changes.GetCredentialIds(), []string{made.GetKey().GetId()}) {
		t.Errorf("heard %v", changes)
	}
	nats.Stop() // and nobody waits for it
	if _, err := i.PutRole(root, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "r"}}); err != nil {
		t.Error(err)
	}
}

// AUT-10: what is secret is in no log, no error and no row.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	session := i.signIn(rootName, rootWord)
	root := i.as(session)
	secrets := []string{rootWord, someWord, session, "a guess that is wrong", "wgk_0000000000000000_notasecretofours"}
	made, err := i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := i.RotateKey(root, &wigglev1.RotateKeyRequest{Key: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	secrets = append(secrets, made.GetSecret(), rotated.GetSecret())
	var errs []error
	fail := func(err error) { errs = append(errs, err) }
	_, err = i.SignIn(t.Context(), &wigglev1.SignInRequest{Name: rootName, Password: secrets[3]})
	fail(err)
	_, err = i.authenticate(secrets[4])
	fail(err)
	_, err = i.ChangePassword(root, &wigglev1.ChangePasswordRequest{OldPassword: secrets[3], NewPassword: someWord})
	fail(err)
	_, err = i.CreateAccount(root, &wigglev1.CreateAccountRequest{Name: "no name", Password: someWord})
	fail(err)
	_, err = i.SetUp(t.Context(), &wigglev1.SetUpRequest{Token: secrets[4], Name: "eve", Password: someWord})
	fail(err)
	if _, err := i.CreateAccount(root, &wigglev1.CreateAccountRequest{Name: "ada", Password: someWord}); err != nil {
		t.Fatal(err)
	}
	text := s.logs.String()
	for n, err := range errs {
		if err == nil {
			t.Errorf("call %d went through", n)
			continue
		}
		text += err.Error() + faults.FromError(err).Detail()
	}
	for _, table := range []string{"accounts", "credentials", "sessions", "keys", "audit", "setup_token", "auth_changes", "sign_in_attempts"} {
		var rows string
		if err := s.database.QueryRow(t.Context(), "select coalesce(string_agg(t::text, E'\n'), '') from "+table+" t").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		text += rows
	}
	for n, secret := range secrets {
		whole := secret
		if parts := strings.Split(secret, "_"); len(parts) == 3 {
			whole = parts[2][:min(20, len(parts[2]))]
		}
		if strings.Contains(text, whole) {
			t.Errorf("secret %d is there", n)
		}
	}
	if !strings.Contains(text, "wigglev1") && !strings.Contains(text, "/wiggle.v1.AuthService/SignIn") {
		t.Error("the log says nothing of calls, so this shows nothing")
	}
}

// Every problem of the settings is told, and none of the secrets.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"WIGGLE_AUTH_ADMIN_NAME: is not set":               {AdminPassword: "0123456789ab"},
		"WIGGLE_AUTH_ADMIN_NAME: is set, but neither":      {AdminName: "root"},
		`WIGGLE_AUTH_ADMIN_NAME: is "r t"`:                 {AdminName: "r t", AdminPassword: "0123456789ab"},
		"WIGGLE_AUTH_ADMIN_PASSWORD: has 8 bytes":          {AdminName: "root", AdminPassword: "sesame42"},
		"WIGGLE_AUTH_ADMIN_PASSWORD_FILE: is set together": {AdminName: "root", AdminPassword: "0123456789ab", AdminPasswordFile: "x"},
		"WIGGLE_AUTH_SESSION_IDLE: is 2h0m0s, longer than": {SessionIdle: 2 * time.Hour, SessionLifetime: time.Hour},
	} {
		var text strings.Builder
		for _, p := range c.Check(nil) {
			text.WriteString(p.String() + "\n")
		}
		if !strings.Contains(text.String(), want) || strings.Contains(text.String(), "sesame42") {
			t.Errorf("want %q, got %s", want, text.String())
		}
	}
}
