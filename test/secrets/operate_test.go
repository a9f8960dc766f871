package secrets

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/wiggle-run/wiggle/internal/bench/child"
	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func quoted(text string) string {
	b, _ := json.Marshal(text) // a string always can be
	return string(b)
}

// commands uses the command line as it is meant to be, and as it is not.
func (s *stack) commands() {
	s.Helper()
	alone := command{alone: true}
	typed := func(lines ...string) command { return command{alone: true, stdin: strings.Join(lines, "\n") + "\n"} }
	failing := func(c command) command {
		c.fails = true
		return c
	}
	s.see(failing(typed(s.word("a wrong password at the prompt"))), "login", "--name", adminName, "--password-stdin")
	s.see(failing(typed("one line", s.word("a line too many"))), "login", "--name", adminName, "--password-stdin")
	s.see(typed(s.adminWord), "login", "--name", adminName, "--password-stdin")
	kept := filepath.Join(s.dir, ".config", "wiggle", "credentials.json")
	s.Use("the session of wiggle login", tokenIn(s, kept))
	s.see(alone, "whoami")
	s.see(alone, "sessions", "-o", "json")
	first, second := s.word("eve's first password"), s.word("eve's second password")
	s.see(typed(first), "users", "create", "eve", "--role", "operator", "--password-stdin")
	s.see(failing(typed(s.Use("eve's short password", rand.Text()[:10]))), "users", "reset-password", "eve", "--password-stdin")
	s.see(typed(second), "users", "reset-password", "eve", "--password-stdin")
	s.see(failing(typed("users: [{name: x, password_hash: "+s.Use("a hash that is none", rand.Text())+"}]")), "users", "import", "-")
	s.see(failing(typed(`{"users": "`+s.Use("users that are none", rand.Text()))), "users", "import", "-")
	s.see(alone, "users", "list")
	s.see(alone, "users", "sessions", "eve")
	key := s.Use("a key of the command line", strings.TrimSpace(s.wiggle(alone, "keys", "create", "shell", "--role", "admin")))
	rotated := s.Use("its rotated secret", strings.TrimSpace(s.wiggle(alone, "keys", "rotate", "shell", "--overlap", "1h")))
	s.see(alone, "keys", "list", "-o", "json")
	s.see(alone, "logout")
	if _, err := os.Stat(kept); err == nil {
		if text, err := os.ReadFile(kept); err == nil && strings.Contains(string(text), "wgs_") {
			s.Errorf("after logout the file has a session")
		}
	}
	with := func(environ ...string) command { return command{alone: true, environ: environ} }
	file := "WIGGLE_API_KEY_FILE=" + s.write("key", rotated+"\n")
	for _, c := range []command{with("WIGGLE_API_KEY=" + key), with(file)} {
		s.see(c, "list")
		s.see(c, "count", "-o", "json")
		s.see(c, "search", "--workflow", "order")
		s.see(c, "audit")
		s.see(c, "start", "order", "--input", "1")
	}
	blank := s.Use("a key with a blank", rand.Text()+" "+rand.Text())
	for _, c := range []command{
		with("WIGGLE_API_KEY=" + cut(key)), with("WIGGLE_API_KEY=" + blank), with("WIGGLE_API_KEY="+key, file),
		with("WIGGLE_API_KEY_FILE=" + s.write("blank", blank)),
		with("WIGGLE_API_KEY="+key, "WIGGLE_SERVER=http://u:"+url.QueryEscape(s.word("a password for the server"))+"@127.0.0.1:1"),
		with("WIGGLE_API_KEY="+key, "WIGGLE_SERVER=http://u:"+url.QueryEscape(s.word("a password in a URL that is none"))+"@h:x"),
	} {
		s.see(failing(c), "list")
		s.see(failing(c), "whoami", "-o", "json")
	}
	s.see(with(file), "keys", "revoke", "shell", "--yes")
	if err := os.WriteFile(kept, []byte(`{"sessions": {"`+s.Use("a broken file of sessions", rand.Text())), 0o600); err != nil {
		s.Error(err)
	}
	s.see(failing(alone), "whoami")
	_ = os.Remove(kept)
}

var token = regexp.MustCompile(`wg[kis]_\w+`)

// tokenIn is the credential in a file.
func tokenIn(s *stack, path string) string {
	s.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		s.Fatal(err)
	}
	return token.FindString(string(text))
}

// badStarts starts services whose settings, files or topology are wrong: what they say has no secret.
func (s *stack) badStarts() {
	s.Helper()
	good, err := os.ReadFile(s.topology)
	s.done("read the topology", err)
	document := string(good)
	database := func(format string, a ...any) string { return "WIGGLE_DATABASE_URL=" + fmt.Sprintf(format, a...) }
	word := func(name string) string { return url.QueryEscape(s.word(name)) }
	for name, environ := range map[string][]string{
		"a topology that is cut":       {"WIGGLE_STORAGE_TOPOLOGY=" + s.write("cut.json", document[:len(document)/2])},
		"a topology with a bad URL":    {"WIGGLE_STORAGE_TOPOLOGY=" + s.write("url.json", strings.Replace(document, "@127.0.0.1", "@127.0.0.1:x", 1))},
		"a topology of another kind":   {"WIGGLE_STORAGE_TOPOLOGY=" + s.write("kind.json", strings.Replace(document, `"url":"`, `"url":1,"uri":"`, 1))},
		"a topology in place":          {"WIGGLE_STORAGE_TOPOLOGY=" + document + "}"},
		"a topology and a database":    {database("postgres://u:%s@h/x", word("a password beside the topology"))},
		"a database's bad escape":      {"WIGGLE_STORAGE_TOPOLOGY=", database("postgres://u:%%zz%s@h/x", word("a password with a bad escape in a URL"))},
		"a database's bad port":        {"WIGGLE_STORAGE_TOPOLOGY=", database("postgres://u:%s@h:port/x", word("a password before a bad port"))},
		"a database's bad scheme":      {"WIGGLE_STORAGE_TOPOLOGY=", database("mysql://u:%s@h/x", word("a password of another database"))},
		"a database as keywords":       {"WIGGLE_STORAGE_TOPOLOGY=", database("host=h password=%s port=x", word("a password among keywords"))},
		"a short service key":          {"WIGGLE_SERVICE_KEY_FILE=" + s.write("short", s.Use("a short service key", rand.Text()))},
		"two service keys":             {"WIGGLE_SERVICE_KEY=" + s.Use("a service key beside its file", rand.Text()+rand.Text())},
		"the key for its path":         {"WIGGLE_SERVICE_KEY_FILE=", "WIGGLE_SERVICE_KEY=" + s.Use("a service key that is short", rand.Text())},
		"a short password":             {"WIGGLE_AUTH_ADMIN_PASSWORD_FILE=", "WIGGLE_AUTH_ADMIN_PASSWORD=" + s.Use("an administrator's short password", rand.Text()[:10])},
		"two passwords":                {"WIGGLE_AUTH_ADMIN_PASSWORD=" + s.word("an administrator's second password")},
		"a password for another name":  {"WIGGLE_AUTH_ADMIN_PASWORD=" + s.word("a password with a misspelt name")},
		"a bad URL of NATS":            {"WIGGLE_NATS_URLS=nats://u:" + word("a password of a bad NATS") + "@h:port"},
		"another scheme for NATS":      {"WIGGLE_NATS_URLS=http://u:" + word("a password of another NATS") + "@h"},
		"a router's URL with a word":   {"WIGGLE_ROUTER_URLS=http://u:" + word("a password in a router's URL") + "@h"},
		"a router's bad URL":           {"WIGGLE_ROUTER_URLS=http://u:" + word("a password in a router's bad URL") + "@h:port"},
		"an auth URL with a word":      {"WIGGLE_AUTH_URLS=http://u:" + word("a password in an auth URL") + "@h"},
		"a search URL with a word":     {"WIGGLE_SEARCH_URLS=http://u:" + word("a password in a search URL") + "@h"},
		"a leader's URL with a word":   {"WIGGLE_LEADER_URLS=http://u:" + word("a password in a leader's URL") + "@h"},
		"an instances URL with a word": {"WIGGLE_INSTANCES_URLS=dns+http://u:" + word("a password in an instances URL") + "@h"},
		"a collector's bad header":     {"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%zz" + s.Use("a collector's badly written token", rand.Text())},
		"a collector's bad list":       {"OTEL_EXPORTER_OTLP_HEADERS=" + s.Use("a collector's token without a name", rand.Text())},
		"a collector's bad URL":        {"OTEL_EXPORTER_OTLP_ENDPOINT=http://u:" + word("a password of a collector") + "@h:port"},
	} {
		says := []string{"the configuration is not right", "telemetry: OTEL_EXPORTER_OTLP_"}
		s.see(command{environ: environ, fails: true, says: says}, "serve", refusing(name))
	}
	for name, password := range map[string]string{homeDatabase: s.word("a wrong password of the database"), "nobody": s.word("the password of no role")} {
		s.see(command{environ: []string{"WIGGLE_STORAGE_TOPOLOGY=", "WIGGLE_DATABASE_URL=" + s.databaseURL(name, password)}, fails: true}, "migrate")
	}
	for _, host := range []string{"127.0.0.1:1", "no-such-host.invalid"} {
		s.see(command{
			environ: []string{"WIGGLE_STORAGE_TOPOLOGY=", database("postgres://u:%s@%s/x?connect_timeout=1", word("a password for nobody at "+host), host)},
			fails:   true,
		}, "migrate")
	}
	s.see(command{alone: true}, "topology", "check", s.topology)
	s.see(command{alone: true, fails: true}, "topology", "check", filepath.Join(s.dir, "url.json"))
	s.see(command{}, "migrate", "--verify")
}

// refusing is a service that reads what is wrong.
func refusing(what string) string {
	switch {
	case strings.Contains(what, "router's"):
		return "leader"
	case strings.Contains(what, "URL with a word"), strings.Contains(what, "NATS"):
		return "router"
	}
	return "auth"
}

// trouble restarts the auth service, and takes the databases and NATS away for a moment.
func (s *stack) trouble(admin *clients) {
	s.Helper()
	back := func() {
		s.await("the auth service", func() error {
			_, err := admin.ListKeys(s.Context(), &wigglev1.ListKeysRequest{})
			return err
		})
	}
	s.restart("auth")
	back()
	s.done("stop the databases", s.postgres.Stop(s.Context()))
	s.await("the absence of the databases", func() error {
		_, err := s.as("").SignIn(s.Context(), &wigglev1.SignInRequest{Name: "ada", Password: s.word("a password without a database")})
		if faults.CodeOf(err) != faults.CodeUnavailable {
			return fmt.Errorf("answered %w", err)
		}
		s.refused("sign-in without a database", err, faults.CodeUnavailable)
		return nil
	})
	_, err := s.bearer("wgk_0123456789abcdef_"+s.Use("a key without a database", rand.Text())).CountInstances(
		s.Context(), &wigglev1.CountInstancesRequest{})
	s.Add(Errors, "without a database", fmt.Sprint(err))
	s.restart("instances")
	s.startPostgres()
	back()
	s.nats.Stop()
	made, err := admin.CreateKey(s.Context(), &wigglev1.CreateKeyRequest{Name: "offline"})
	s.done("make a key without NATS", err)
	s.Use("a key made without NATS", made.GetSecret())
	s.done("start NATS again", s.nats.Restart())
	_, err = admin.RevokeKey(s.Context(), &wigglev1.RevokeKeyRequest{Key: "offline"})
	s.done("revoke a key", err)
	s.await("the router", func() error { return ready(s.Context(), s.router) })
}

// setUp runs all services in one process, and makes the first administrator by the token that it prints: once, on standard error
// and to nobody else.
func (s *stack) setUp() {
	s.Helper()
	address := freeAddress(s.T)
	environ := slices.DeleteFunc(slices.Clone(s.environ), func(entry string) bool {
		return strings.HasPrefix(entry, "WIGGLE_STORAGE_") || strings.HasPrefix(entry, "WIGGLE_AUTH_ADMIN") || strings.HasPrefix(entry, "WIGGLE_SERVICE_KEY")
	})
	environ = append(environ, "WIGGLE_DATABASE_URL="+s.databaseURL(wholeDatabase, s.passwords[wholeDatabase]),
		"WIGGLE_ROUTER_ADDR="+address, "WIGGLE_NATS_URLS=", "WIGGLE_SERVICE_KEY="+s.Use("a service key in the environment", rand.Text()+rand.Text()))
	p, err := child.Start([]string{s.bin, "serve", "all"}, s.dir, "all", "", environ)
	s.done("start all", err)
	defer p.Stop(context.WithoutCancel(s.Context()))
	log := filepath.Join(s.dir, "all.log")
	var printed string
	s.await("the set-up token", func() error {
		text, err := os.ReadFile(log)
		if printed = token.FindString(string(text)); err == nil && printed == "" {
			err = fmt.Errorf("not printed yet")
		}
		return err
	})
	s.Use("the set-up token", printed)
	word := s.word("the password of the first administrator")
	c := command{alone: true, environ: []string{"WIGGLE_SERVER=http://" + address}}
	c.stdin, c.fails = cut(printed)+"\n"+word+"\n", true
	s.see(c, "login", "--setup", "--name", "root", "--password-stdin")
	c.stdin, c.fails = printed+"\n"+word+"\n", false
	s.see(c, "login", "--setup", "--name", "root", "--password-stdin")
	s.Use("the session of the first administrator", tokenIn(s, filepath.Join(s.dir, ".config", "wiggle", "credentials.json")))
	c.fails = true
	s.see(c, "login", "--setup", "--name", "eve", "--password-stdin")
	c.fails = false
	s.see(c, "logout")
	p.Stop(context.WithoutCancel(s.Context()))
	text, err := os.ReadFile(log)
	s.done("read the log", err)
	s.Add(Logs, "all.log", strings.Replace(string(text), printed, "(here is the token)", 1))
}

// judge stops the services, reads what they have left, and looks for every secret in all of it.
func (s *stack) judge(admin *clients) {
	s.Helper()
	_, err := admin.ListAuditEntries(s.Context(), &wigglev1.ListAuditEntriesRequest{PageSize: 1000})
	s.done("read the audit log", err)
	s.stopServices()
	for role := range s.addresses {
		readFile(s.T, s.Search, Logs, filepath.Join(s.dir, role+".log"))
	}
	for _, name := range databases() {
		dump(s.T, s.Search, name, strings.Replace(s.postgres.URL("postgres"), "/postgres?", "/"+name+"?", 1))
	}
	readFile(s.T, s.Search, DatabaseLogs, s.postgres.LogFile())
	for kind, parts := range map[Kind][]string{
		Logs:         {`"level":"DEBUG"`, "AuthService/SignIn", "spans were not exported", "process starts", "UNAVAILABLE"},
		Outputs:      {"signed in at", "the configuration is not right", "password authentication failed", "unauthenticated", "no-such-host"},
		Traces:       {"wiggle.v1.AuthService/SignIn", "shard.commit", "wiggle.v1.WorkerService/Work", "send wiggle.events", "select", "insert into"},
		Metrics:      {"wiggle_auth_sign_ins_total", "wiggle.auth.denied", "wiggle_search_indexed_total", `"shard"`},
		Answers:      {"the name or the password is wrong", "Grpc-Status", "key.rotate", "Wiggle-Release"},
		Errors:       {"the name or the password is wrong", "no API key", "does not exist"},
		Processes:    {"serve auth", "postgres: wiggle_auth", "login --setup", "serve all"},
		Messages:     {"wiggle.auth.changes", "wiggle.events.", "$JS.API"},
		Rows:         {"key.rotate", "$argon2id$", "user/ada", "auth.sign_in"},
		DatabaseLogs: {"insert into audit", "parameters: ", "password authentication failed", "$argon2id$"},
	} {
		for _, part := range parts {
			if !s.Has(kind, part) {
				s.Errorf("nothing in the %s has %q: the search does not see what it should", kind, part)
			}
		}
	}
	bytes, n := s.Size()
	s.Logf("looked for %d secrets in %v bytes", n, bytes)
	for _, finding := range s.Find() {
		s.Error(finding)
	}
}
