package secrets

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNoSecretComesOut uses every secret there is in a whole run, and then looks for them in all that came out of it.
func TestNoSecretComesOut(t *testing.T) { // AUT-2
	t.Parallel()
	began := time.Now()
	s := startStack(t)
	admin := s.signInAdmin()
	var key string
	for _, part := range []struct {
		name string
		run  func()
	}{
		{"wrong sign-ins", s.wrongSignIns},
		{"accounts", func() { s.accounts(admin) }},
		{"keys", func() { key = s.keys(admin) }},
		{"wrong credentials", func() { s.wrongCredentials(key) }},
		{"cookies", s.cookies},
		{"work", func() { s.work(key) }},
		{"commands", s.commands},
		{"bad starts", s.badStarts},
		{"trouble", func() { s.trouble(admin) }},
		{"set-up", s.setUp},
		{"the search", func() { s.judge(admin) }},
	} {
		t.Logf("%s from %s on", part.name, time.Since(began).Round(time.Millisecond))
		part.run()
	}
	t.Logf("done after %s", time.Since(began).Round(time.Millisecond))
}

// signInAdmin waits for the auth service, and signs the administrator in.
func (s *stack) signInAdmin() *clients {
	s.Helper()
	var token string
	s.await("the administrator's sign-in", func() error {
		res, err := s.as("").SignIn(s.Context(), &wigglev1.SignInRequest{Name: adminName, Password: s.adminWord})
		token = res.GetToken()
		return err
	})
	s.adminToken = s.Use("the administrator's session", token)
	return s.bearer(token)
}

// signIn begins a session.
func (s *stack) signIn(name, password string) (token string) {
	s.Helper()
	res, err := s.as("").SignIn(s.Context(), &wigglev1.SignInRequest{Name: name, Password: password})
	s.done("sign in as "+name, err)
	return s.Use("a session of "+name, res.GetToken())
}

// notSignedIn is a sign-in that is refused.
func (s *stack) notSignedIn(what, name, password string) {
	s.Helper()
	_, err := s.as("").SignIn(s.Context(), &wigglev1.SignInRequest{Name: name, Password: password})
	s.refused(what, err, faults.CodeUnauthenticated)
}

// wrongSignIns are what people and programs get wrong.
func (s *stack) wrongSignIns() {
	s.Helper()
	s.notSignedIn("a wrong password", adminName, s.word("a wrong password"))
	s.notSignedIn("an unknown name", "nobody", s.word("the password of nobody"))
	// The name is what the database is asked for, so its log has it where it logs every statement.
	s.notSignedIn("a password for a name", s.word("a password in the wrong field", DatabaseLogs), "x")
	digits := strings.TrimLeft(fmt.Sprint(time.Now().UnixNano()), "0")
	signIn := wigglev1connect.AuthServiceSignInProcedure
	for what, body := range map[string]string{
		"a password that is a number":   `{"name":"admin","password":` + s.Use("a password that is a number", digits) + `}`,
		"a password without quotes":     `{"name":"admin","password":` + s.Use("a password without quotes", rand.Text()) + `}`,
		"a password within a list":      `{"name":"admin","password":["` + s.Use("a password within a list", rand.Text()) + `"]}`,
		"a password that is cut":        `{"name":"admin","password":"` + s.Use("a password that is cut", rand.Text()),
		"a password with a bad escape":  `{"name":"admin","password":"\q` + s.Use("a password with a bad escape", rand.Text()) + `"}`,
		"a password for the field":      `{"` + s.Use("a password for the field", rand.Text()) + `":"admin"}`,
		"a password in the cookie flag": `{"name":"admin","password":"x","cookie":"` + s.Use("a password in the cookie flag", rand.Text()) + `"}`,
		"a password twice":              `{"name":"admin","password":"x","password":"` + s.Use("a password twice", rand.Text()) + `"}`,
		"a password behind the end":     `{"name":"admin","password":"x"}` + s.Use("a password behind the end", rand.Text()),
		"a form":                        "name=admin&password=" + s.Use("a password in a form", rand.Text()),
	} {
		if status, _ := s.post(signIn, body); status != http.StatusBadRequest {
			s.Errorf("%s: status %d", what, status)
		}
	}
	s.post(signIn, "name=admin&password="+s.Use("a password in another form", rand.Text()), "Content-Type", "application/x-www-form-urlencoded")
	s.post(signIn+"?password="+s.Use("a password in the query", rand.Text()), `{"name":"admin","password":"wrong"}`)
}

// accounts makes accounts, and changes, resets and imports passwords.
func (s *stack) accounts(admin *clients) {
	s.Helper()
	ctx := s.Context()
	first, second, third := s.word("ada's first password"), s.word("ada's second password"), s.word("ada's third password")
	_, err := admin.CreateAccount(ctx, &wigglev1.CreateAccountRequest{Name: "ada", Password: first, Roles: []string{"operator"}})
	s.done("create an account", err)
	_, err = admin.CreateAccount(ctx, &wigglev1.CreateAccountRequest{Name: "ada", Password: s.word("the password of a taken name")})
	s.refused("a name that is taken", err, faults.CodeAlreadyExists)
	_, err = admin.CreateAccount(ctx, &wigglev1.CreateAccountRequest{Name: "bob", Password: s.Use("a short password", rand.Text()[:10])})
	s.refused("a short password", err, faults.CodeInvalidArgument)
	_, err = admin.CreateAccount(ctx, &wigglev1.CreateAccountRequest{Name: s.word("a password for a new name"), Password: first})
	s.refused("a password for a new name", err, faults.CodeInvalidArgument)
	ada, other := s.bearer(s.signIn("ada", first)), s.signIn("ada", first)
	change := func(old, next string) error {
		_, err := ada.ChangePassword(ctx, &wigglev1.ChangePasswordRequest{OldPassword: old, NewPassword: next})
		return err
	}
	s.refused("a wrong old password", change(s.word("a wrong old password"), second), faults.CodePermissionDenied)
	s.refused("a short new password", change(first, s.Use("a short new password", rand.Text()[:10])), faults.CodeInvalidArgument)
	s.done("change the password", change(first, second))
	_, err = s.bearer(other).WhoAmI(ctx, &wigglev1.WhoAmIRequest{})
	s.refused("a session that has ended", err, faults.CodeUnauthenticated)
	s.notSignedIn("the old password", "ada", first)
	_, err = ada.CreateAccount(ctx, &wigglev1.CreateAccountRequest{Name: "eve", Password: s.word("a password that may not be given")})
	s.refused("who may not", err, faults.CodePermissionDenied)
	_, err = admin.ResetPassword(ctx, &wigglev1.ResetPasswordRequest{Name: "ada", Password: third})
	s.done("reset the password", err)
	s.sessions(admin, third)
	_, err = admin.PutRole(ctx, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "reader", Permissions: []string{"instance.read"}}})
	s.done("make a role", err)
	s.imported(admin)
	disabled, password := true, s.word("the password of a disabled account")
	_, err = admin.CreateAccount(ctx, &wigglev1.CreateAccountRequest{Name: "off", Password: password})
	s.done("create an account", err)
	_, err = admin.UpdateAccount(ctx, &wigglev1.UpdateAccountRequest{Name: "off", Disabled: &disabled})
	s.done("disable an account", err)
	s.notSignedIn("a disabled account", "off", password)
}

// sessions lists sessions and ends them, also by what is no id.
func (s *stack) sessions(admin *clients, password string) {
	s.Helper()
	ctx := s.Context()
	token := s.signIn("ada", password)
	ada := s.bearer(token)
	_, err := ada.ListSessions(ctx, &wigglev1.ListSessionsRequest{})
	s.done("list sessions", err)
	_, err = admin.ListAccountSessions(ctx, &wigglev1.ListAccountSessionsRequest{Name: "ada"})
	s.done("list the sessions of an account", err)
	whole := s.signIn("ada", password)
	_, err = ada.RevokeSession(ctx, &wigglev1.RevokeSessionRequest{SessionId: whole})
	s.refused("a session by its token", err, faults.CodeInvalidArgument)
	_, err = ada.RevokeSession(ctx, &wigglev1.RevokeSessionRequest{SessionId: whole[:60]})
	s.done("a session by its token, cut", err)
	_, err = ada.RevokeSession(ctx, &wigglev1.RevokeSessionRequest{SessionId: s.adminToken[:60]})
	s.refused("another's session", err, faults.CodeNotFound)
	_, err = admin.RevokeAccountSessions(ctx, &wigglev1.RevokeAccountSessionsRequest{Name: "ada", SessionId: whole})
	s.refused("a session of an account by its token", err, faults.CodeInvalidArgument)
	_, err = s.bearer(s.signIn("ada", password)).SignOut(ctx, &wigglev1.SignOutRequest{})
	s.done("sign out", err)
	_, err = admin.RevokeAccountSessions(ctx, &wigglev1.RevokeAccountSessionsRequest{Name: "ada"})
	s.done("end all sessions", err)
	_, err = ada.WhoAmI(ctx, &wigglev1.WhoAmIRequest{})
	s.refused("a session that was ended", err, faults.CodeUnauthenticated)
}

// cut is a credential that was not copied whole.
func cut(credential string) string { return credential[:len(credential)-3] }

// imported brings over the hash of another system, and one that is none.
func (s *stack) imported(admin *clients) {
	s.Helper()
	password, salt := s.word("an imported password"), []byte(rand.Text()[:16])
	derived, err := pbkdf2.Key(sha256.New, password, salt, 10_000, 32)
	s.done("hash", err)
	plain := base64.RawStdEncoding
	hash := s.Use("an imported hash", "$pbkdf2-sha256$i=10000,l=32$"+plain.EncodeToString(salt)+"$"+plain.EncodeToString(derived), Rows, DatabaseLogs)
	for what, wrong := range map[string]string{
		"no hash": s.word("a password for a hash"), "a hash that is too dear": strings.Replace(hash, "i=10000", "i=99999999", 1),
	} {
		_, err := admin.ImportAccounts(s.Context(), &wigglev1.ImportAccountsRequest{
			Accounts: []*wigglev1.ImportedAccount{{Name: "eve", PasswordHash: wrong}},
		})
		s.refused(what, err, faults.CodeInvalidArgument)
	}
	_, err = admin.ImportAccounts(s.Context(), &wigglev1.ImportAccountsRequest{
		Accounts: []*wigglev1.ImportedAccount{{Name: "old", PasswordHash: hash, Roles: []string{"viewer"}}},
	})
	s.done("import", err)
	s.signIn("old", password)
}

// keys makes, rotates and revokes keys, and returns one that lasts.
func (s *stack) keys(admin *clients) string {
	s.Helper()
	ctx := s.Context()
	create := func(name string) string {
		res, err := admin.CreateKey(ctx, &wigglev1.CreateKeyRequest{Name: name, Roles: []string{"admin"}})
		s.done("create a key", err)
		return s.Use("the key "+name, res.GetSecret())
	}
	lasting, first := create("lasting"), create("rotated")
	res, err := admin.RotateKey(ctx, &wigglev1.RotateKeyRequest{Key: "rotated", Overlap: durationpb.New(time.Hour)})
	s.done("rotate a key", err)
	second := s.Use("the rotated key", res.GetSecret())
	for _, secret := range []string{first, second} {
		_, err := s.bearer(secret).WhoAmI(ctx, &wigglev1.WhoAmIRequest{})
		s.done("both secrets of a key", err)
	}
	_, err = admin.CreateKey(ctx, &wigglev1.CreateKeyRequest{Name: "rotated"})
	s.refused("a name that is taken", err, faults.CodeAlreadyExists)
	_, err = admin.RevokeKey(ctx, &wigglev1.RevokeKeyRequest{Key: "rotated"})
	s.done("revoke a key", err)
	for _, secret := range []string{first, second} {
		s.await("the end of a key", func() error {
			if _, err := s.bearer(secret).WhoAmI(ctx, &wigglev1.WhoAmIRequest{}); faults.CodeOf(err) != faults.CodeUnauthenticated {
				return fmt.Errorf("answers %w", err)
			}
			return nil
		})
	}
	// People paste what leaked, not its id.
	whole := create("leaked")
	_, err = admin.RotateKey(ctx, &wigglev1.RotateKeyRequest{Key: first})
	s.refused("rotate a key that is gone", err, faults.CodeNotFound)
	rotated, err := admin.RotateKey(ctx, &wigglev1.RotateKeyRequest{Key: cut(whole)})
	s.done("rotate a key by its secret", err)
	_, err = admin.RevokeKey(ctx, &wigglev1.RevokeKeyRequest{Key: s.Use("a leaked key", rotated.GetSecret())})
	s.done("revoke a key by its secret", err)
	_, err = admin.CreateKey(ctx, &wigglev1.CreateKeyRequest{Name: whole})
	s.refused("a key by the name of one", err, faults.CodeInvalidArgument)
	_, err = admin.CreateAccount(ctx, &wigglev1.CreateAccountRequest{Name: whole, Password: s.word("the password of a key")})
	s.refused("an account by the name of a key", err, faults.CodeInvalidArgument)
	_, err = admin.PutRole(ctx, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: "described", Description: "for " + whole}})
	s.refused("a role with a key in its description", err, faults.CodeInvalidArgument)
	_, err = s.bearer(whole).GetInstance(ctx, &wigglev1.GetInstanceRequest{InstanceId: whole})
	s.refused("an instance by the name of a key", err, faults.CodeUnauthenticated)
	_, err = s.bearer(lasting).GetInstance(ctx, &wigglev1.GetInstanceRequest{InstanceId: whole})
	s.refused("an instance by the name of a key", err, faults.CodeInvalidArgument)
	return lasting
}

// wrongCredentials shows what is none, was cut or mistyped, or is in the wrong place.
func (s *stack) wrongCredentials(key string) {
	s.Helper()
	basic := base64.StdEncoding.EncodeToString([]byte("admin:" + s.word("the password of a basic header")))
	other := key[:len(key)-20] + strings.ToLower(rand.Text())[:20]
	for what, header := range map[string]string{
		"no token":                 "Bearer " + s.Use("what is no token", rand.Text()),
		"a key that was cut":       "Bearer " + cut(key),
		"a key that was mistyped":  "Bearer " + s.Use("a mistyped key", other),
		"a key with a blank in it": "Bearer " + key[:30] + " " + key[30:],
		"a key without a scheme":   key,
		"another scheme":           "Basic " + basic,
		"a strange kind":           "Bearer wgx_" + s.Use("a key of a strange kind", rand.Text()),
		"a service key":            "Bearer " + s.serviceKey,
	} {
		for _, protocol := range [][]connect.ClientOption{nil, {connect.WithGRPC()}, {connect.WithGRPCWeb()}} {
			_, err := s.as(header, protocol...).CountInstances(s.Context(), &wigglev1.CountInstancesRequest{})
			s.refused(what, err, faults.CodeUnauthenticated)
		}
		stream, err := s.as(header).Work(s.Context())
		s.done("open a stream", err)
		_ = stream.Send(&wigglev1.WorkRequest{Hello: &wigglev1.WorkHello{Worker: "w"}, Credits: 1})
		_, err = stream.Receive()
		s.refused(what+", on a stream", err, faults.CodeUnauthenticated)
		_ = stream.CloseResponse()
	}
	who := wigglev1connect.AuthServiceWhoAmIProcedure
	for what, headers := range map[string][]string{
		"two headers":              {"Authorization", "Bearer " + key, "Authorization", "Bearer " + s.Use("a second key", rand.Text())},
		"a cookie that is none":    {"Cookie", "wiggle_session=" + s.Use("a cookie that is none", rand.Text())},
		"a cookie of another site": {"Cookie", "wiggle_session=" + key, "Origin", "http://evil.example"},
		"another service key":      {"Wiggle-Service-Key", s.Use("another service key", rand.Text()+rand.Text())},
	} {
		if status, _ := s.post(who, "{}", headers...); status != http.StatusUnauthorized {
			s.Errorf("%s: status %d", what, status)
		}
	}
	// What stands in a URL is in logs of proxies; ours do not take it, and do not repeat it.
	s.post(who+"?token="+s.Use("a key in a query", "wgk_"+rand.Text()), "{}")
	s.post("/"+s.Use("a key for a path", "wgk_"+rand.Text()), "{}")
	for _, role := range []string{"auth", "instances", "leader", "search"} {
		away := *s
		away.router = "http://" + s.addresses[role]
		_, err := away.bearer(key).WhoAmI(s.Context(), &wigglev1.WhoAmIRequest{})
		s.Add(Errors, "the port of "+role, fmt.Sprintf("%v %+v", err, err))
		if err == nil {
			s.Errorf("the port of %s takes a key", role)
		}
		away.post(who, "{}", "Wiggle-Service-Key", s.Use("a wrong key for "+role, rand.Text()+rand.Text()))
	}
}

// cookies begins and ends a browser's session.
func (s *stack) cookies() {
	s.Helper()
	body := fmt.Sprintf(`{"name":%q,"password":%s,"cookie":true}`, adminName, quoted(s.adminWord))
	own := []string{"Origin", s.router, "Wiggle-Csrf", "1"}
	status, cookies := s.post(wigglev1connect.AuthServiceSignInProcedure, body, own...)
	if status != http.StatusOK || len(cookies) != 1 {
		s.Fatalf("a browser's sign-in: status %d, %d cookies", status, len(cookies))
	}
	cookie := s.Use("a browser's session", cookies[0].Value)
	own = append(own, "Cookie", "wiggle_session="+cookie)
	for _, procedure := range []string{
		wigglev1connect.AuthServiceWhoAmIProcedure, wigglev1connect.AuthServiceListSessionsProcedure, wigglev1connect.AuthServiceSignOutProcedure,
	} {
		if status, _ := s.post(procedure, "{}", own...); status != http.StatusOK {
			s.Errorf("%s with a cookie: status %d", procedure, status)
		}
	}
}

// work runs instances with a key: by unary calls, and by the SDK with its stream, until search finds them.
func (s *stack) work(key string) {
	s.Helper()
	ctx := s.Context()
	order := wiggle.Define("order", func(f *wiggle.Flow) { f.Task("pay") })
	sdk, err := wiggle.Dial(s.router, wiggle.WithAPIKey(key), wiggle.WithRetries(50, readyEvery, time.Second))
	s.done("dial", err)
	defer sdk.Close()
	_, err = sdk.Register(ctx, order)
	s.done("register", err)
	c := s.bearer(key)
	started, err := c.StartInstance(ctx, &wigglev1.StartInstanceRequest{
		Workflow: "order", Input: &wigglev1.Payload{ContentType: "application/json", Data: []byte("1")},
	})
	s.done("start", err)
	s.await("a task", func() error { return c.workOnce(ctx) })
	_, err = c.WaitInstance(ctx, &wigglev1.WaitInstanceRequest{InstanceId: started.GetInstanceId()})
	s.done("wait", err)
	working, stop := context.WithCancel(ctx)
	worker := wiggle.NewWorker(sdk, wiggle.WorkerOptions{Name: "streamer"})
	wiggle.HandleTask(worker, "pay", func(_ context.Context, in int) (int, error) { return in + 1, nil })
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(working) }()
	run, err := sdk.Start(ctx, "order", 1)
	s.done("start by the SDK", err)
	_, err = run.Wait(ctx)
	s.done("wait by the SDK", err)
	stop()
	s.done("the worker", <-ended)
	s.await("search", func() error {
		found, err := sdk.SearchFacets(ctx, "", wiggle.SearchFilter{Workflows: []string{"order"}, CreatedFrom: time.Unix(0, 0)})
		if err == nil && found.Total < 2 {
			err = fmt.Errorf("found %d", found.Total)
		}
		return err
	})
	_, err = c.ListAuditEntries(ctx, &wigglev1.ListAuditEntriesRequest{PageSize: 1000})
	s.done("read the audit log", err)
	for _, wrong := range []string{cut(key), s.Use("what the SDK cannot send", rand.Text()+" "+rand.Text())} {
		stranger, err := wiggle.Dial(s.router, wiggle.WithAPIKey(wrong), wiggle.WithRetries(1, 0, 0))
		if err == nil {
			_, err = stranger.Start(ctx, "order", 1)
			stranger.Close()
		}
		s.Add(Errors, "SDK", fmt.Sprintf("%v %+v", err, err))
	}
	for _, address := range []string{"http://u:%s@h%%zz", "http://u:%s@127.0.0.1:port", "postgres://u:%s@h/x", "http://u:%s@127.0.0.1:1"} {
		address = fmt.Sprintf(address, url.QueryEscape(s.word("a password in a server's URL")))
		wrong, err := wiggle.Dial(address, wiggle.WithAPIKey(key), wiggle.WithRetries(1, 0, 0))
		if err == nil {
			_, err = wrong.Start(ctx, "order", 1)
			wrong.Close()
		}
		s.Add(Errors, "SDK", fmt.Sprintf("%v %+v", err, err))
	}
}

// workOnce polls for a task and reports it.
func (c *clients) workOnce(ctx context.Context) error {
	res, err := c.PollTasks(ctx, &wigglev1.PollTasksRequest{Worker: "poller", Wait: durationpb.New(time.Second)})
	if err != nil {
		return err
	}
	if len(res.GetTasks()) == 0 {
		return fmt.Errorf("no task yet")
	}
	task := res.GetTasks()[0]
	_, err = c.ReportSteps(ctx, &wigglev1.ReportStepsRequest{Worker: "poller", Reports: []*wigglev1.StepReport{{
		TaskId: task.GetId(), Lease: task.GetLease(),
		Outcome: &wigglev1.StepReport_Result{Result: &wigglev1.Payload{ContentType: "application/json", Data: []byte("2")}},
	}}})
	return err
}
