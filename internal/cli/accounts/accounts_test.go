package accounts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/wiggle-run/wiggle/internal/cli"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// update writes what is printed to the golden files, to be read through before they are kept.
var update = flag.Bool("update", false, "write the golden files")

// now is the time in tests.
var now = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

// user is somebody before a terminal.
type user struct {
	t       *testing.T
	url     string
	config  string   // the directory for configuration
	environ []string // beside the server
	stdin   string
	// terminal tells whether stdin is one; typed is what is typed where it is not shown.
	terminal bool
	typed    []string
}

// result is how a command ended.
type result struct {
	code     int
	out, err string
}

func (u *user) wiggle(args ...string) result {
	u.t.Helper()
	var out, err bytes.Buffer
	typed := u.typed
	p := &cli.Program{
		In: strings.NewReader(u.stdin), Out: &out, Err: &err, Environ: append([]string{"LANG=C.UTF-8", "WIGGLE_SERVER=" + u.url}, u.environ...),
		Location: time.UTC, Now: func() time.Time { return now }, ConfigDir: u.config, Interactive: u.terminal,
		ReadSecret: func() (string, error) {
			if len(typed) == 0 {
				return "", errors.New("nothing more is typed")
			}
			text := typed[0]
			typed = typed[1:]
			return text, nil
		},
	}
	code := cli.Run(u.t.Context(), p, args)
	return result{code, out.String(), err.String()}
}

// transcript is a command with all that came of it.
func (u *user) transcript(args ...string) string {
	u.t.Helper()
	r := u.wiggle(args...)
	text := "$ wiggle " + strings.Join(args, " ") + "\n" + r.out
	if r.err != "" {
		text += "--- standard error\n" + r.err
	}
	return strings.ReplaceAll(fmt.Sprintf("%s--- exit code %d\n", text, r.code), u.url, "http://SERVER")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || got != string(want) {
		t.Errorf("%s (%v): got\n%s\nwant\n%s", name, err, got, want)
	}
}

const importText = `users:
  - name: carol
    password_hash: $pbkdf2-sha256$i=600000,l=32$secret$secret
    roles: [viewer]
  - {name: alice, password_hash: $argon2id$secret}
`

// OPS-12: what every verb prints. No transcript but those of new keys holds a secret.
func TestOutputs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"users.yaml": importText, "wrong.yaml": "users: [{name: x, password: secret}]", "bad.json": `{"users": ["secret"]}`, "key": apiKey + "\n",
		"none.yaml": "users: []",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	two := password + "\n" + newPassword + "\n"
	for name, c := range map[string]struct {
		args  []string
		stdin string
	}{
		"whoami":             {[]string{"whoami"}, ""},
		"whoami-json":        {[]string{"whoami", "-o", "json"}, ""},
		"password":           {[]string{"password", "--password-stdin"}, two},
		"password-json":      {[]string{"password", "--password-stdin", "-o", "json"}, two},
		"password-one":       {[]string{"password", "--password-stdin"}, password},
		"password-short":     {[]string{"password", "--password-stdin"}, password + "\nsecret\n"},
		"password-no-tty":    {[]string{"password"}, ""},
		"sessions":           {[]string{"sessions"}, ""},
		"sessions-json":      {[]string{"sessions", "-o", "json"}, ""},
		"sessions-revoke":    {[]string{"sessions", "revoke", "s2"}, ""},
		"sessions-no-id":     {[]string{"sessions", "revoke"}, ""},
		"sessions-verb":      {[]string{"sessions", "end", "s2"}, ""},
		"login-no-name":      {[]string{"login", "--password-stdin"}, password},
		"login-wrong":        {[]string{"login", "--name", "mallory", "--password-stdin"}, password},
		"login-argument":     {[]string{"login", "alice"}, ""},
		"login-setup-wrong":  {[]string{"login", "--setup", "--name", "alice", "--password-stdin"}, two},
		"logout-nobody":      {[]string{"logout"}, ""},
		"users":              {[]string{"users", "list"}, ""},
		"users-json":         {[]string{"users", "list", "-o", "json"}, ""},
		"users-get":          {[]string{"users", "get", "bob"}, ""},
		"users-get-json":     {[]string{"users", "get", "alice", "-o", "json"}, ""},
		"users-missing":      {[]string{"users", "get", "nobody"}, ""},
		"users-create":       {[]string{"users", "create", "carol", "--role", "viewer,worker", "--password-stdin"}, newPassword + "\r\n"},
		"users-denied":       {[]string{"users", "create", "carol", "--role", "admin", "--password-stdin"}, newPassword},
		"users-denied-json":  {[]string{"users", "create", "carol", "--role", "admin", "--password-stdin", "-o", "json"}, newPassword},
		"users-update":       {[]string{"users", "update", "bob", "--role", "viewer", "--enable"}, ""},
		"users-no-roles":     {[]string{"users", "update", "bob", "--role", ""}, ""},
		"users-nothing":      {[]string{"users", "update", "bob"}, ""},
		"users-both":         {[]string{"users", "update", "bob", "--enable", "--disable"}, ""},
		"users-disable":      {[]string{"users", "update", "bob", "--disable"}, ""},
		"users-disable-yes":  {[]string{"users", "update", "bob", "--disable", "--yes", "-o", "json"}, ""},
		"users-reset":        {[]string{"users", "reset-password", "bob", "--password-stdin"}, newPassword},
		"users-delete":       {[]string{"users", "delete", "bob", "--yes"}, ""},
		"users-delete-last":  {[]string{"users", "delete", "root", "--yes"}, ""},
		"users-import":       {[]string{"users", "import", "users.yaml"}, ""},
		"users-import-json":  {[]string{"users", "import", "-", "-o", "json"}, importText},
		"users-import-wrong": {[]string{"users", "import", "wrong.yaml"}, ""},
		"users-import-bad":   {[]string{"users", "import", "bad.json"}, ""},
		"users-import-none":  {[]string{"users", "import", "none.yaml"}, ""},
		"users-import-text":  {[]string{"users", "import", "-"}, "users: [secret\n"},
		"users-sessions":     {[]string{"users", "sessions", "alice"}, ""},
		"users-no-sessions":  {[]string{"users", "sessions", "bob"}, ""},
		"users-revoke":       {[]string{"users", "revoke-sessions", "alice", "--yes"}, ""},
		"users-revoke-json":  {[]string{"users", "revoke-sessions", "alice", "--session", "s2", "--yes", "-o", "json"}, ""},
		"users-which":        {[]string{"users", "add"}, ""},
		"roles":              {[]string{"roles", "list"}, ""},
		"roles-json":         {[]string{"roles", "list", "-o", "json"}, ""},
		"roles-put":          {[]string{"roles", "put", "refunds", "--permission", "instance.read:orders", "--permission", "instance.cancel:orders/refund*", "--description", "cancels"}, ""},
		"roles-put-json":     {[]string{"roles", "put", "refunds", "--permission", "instance.read", "-o", "json"}, ""},
		"roles-put-nothing":  {[]string{"roles", "put", "refunds"}, ""},
		"roles-put-wrong":    {[]string{"roles", "put", "refunds", "--permission", "cancel"}, ""},
		"roles-delete":       {[]string{"roles", "delete", "refunds"}, ""},
		"roles-delete-yes":   {[]string{"roles", "delete", "refunds", "--yes"}, ""},
		"keys":               {[]string{"keys", "list"}, ""},
		"keys-json":          {[]string{"keys", "list", "-o", "json"}, ""},
		"keys-create":        {[]string{"keys", "create", "ci", "--role", "operator", "--expires", "90d"}, ""},
		"keys-create-quiet":  {[]string{"keys", "create", "ci", "--permission", "instance.start:orders", "-q"}, ""},
		"keys-create-json":   {[]string{"keys", "create", "ci", "--role", "operator", "--expires", "12h", "-o", "json"}, ""},
		"keys-certificate":   {[]string{"keys", "create", "w7", "--role", "worker", "--certificate", "CN=worker-7"}, ""},
		"keys-nothing":       {[]string{"keys", "create", "ci"}, ""},
		"keys-expires":       {[]string{"keys", "create", "ci", "--role", "worker", "--expires", "soon"}, ""},
		"keys-rotate":        {[]string{"keys", "rotate", "ci"}, ""},
		"keys-rotate-json":   {[]string{"keys", "rotate", "ci", "--overlap", "2d", "-o", "json"}, ""},
		"keys-rotate-now":    {[]string{"keys", "rotate", "ci", "--overlap", "0"}, ""},
		"keys-rotate-yes":    {[]string{"keys", "rotate", "ci", "--overlap", "0", "--yes"}, ""},
		"keys-revoke":        {[]string{"keys", "revoke", "ci"}, ""},
		"keys-revoke-yes":    {[]string{"keys", "revoke", "ci", "--yes"}, ""},
		"audit":              {[]string{"audit", "-n", "2"}, ""},
		"audit-all":          {[]string{"audit", "--all"}, ""},
		"audit-json":         {[]string{"audit", "-n", "1", "-o", "json"}, ""},
		"audit-none":         {[]string{"audit", "--principal", "nobody"}, ""},
		"audit-limit":        {[]string{"audit", "-n", "0"}, ""},
		"audit-since":        {[]string{"audit", "--since", "then"}, ""},
		"audit-follow":       {[]string{"audit", "--follow", "--from", "earliest", "-n", "2"}, ""},
		"audit-follow-json":  {[]string{"audit", "--follow", "--from", "7", "-n", "2", "-o", "json"}, ""},
		"audit-follow-all":   {[]string{"audit", "--follow", "--all"}, ""},
		"audit-follow-until": {[]string{"audit", "--follow", "--until", "1h"}, ""},
		"audit-follow-both":  {[]string{"audit", "--follow", "--from", "7", "--since", "1h"}, ""},
		"audit-follow-from":  {[]string{"audit", "--follow", "--from", "now"}, ""},
		"audit-follow-limit": {[]string{"audit", "--follow", "-n", "-1"}, ""},
		"audit-follow-since": {[]string{"audit", "--follow", "--since", "then"}, ""},
		"audit-from":         {[]string{"audit", "--from", "earliest"}, ""},
		"help-audit":         {[]string{"audit", "--help"}, ""},
		"help-keys-create":   {[]string{"keys", "create", "--help"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAuth(t) // of its own: it knows a caller by what was shown last
			args := append([]string(nil), c.args...)
			for i, arg := range args {
				if strings.HasSuffix(arg, ".yaml") || strings.HasSuffix(arg, ".json") {
					args[i] = filepath.Join(dir, arg)
				}
			}
			u := &user{t: t, url: f.URL, environ: []string{"WIGGLE_API_KEY=" + apiKey}, stdin: c.stdin, config: t.TempDir()}
			text := strings.ReplaceAll(u.transcript(args...), dir, "DIR")
			golden(t, name, text)
			hasSecret := strings.HasPrefix(name, "keys-create") || strings.HasPrefix(name, "keys-rotate") && name != "keys-rotate-now"
			if n := strings.Count(text, newKey); n != map[bool]int{true: 1}[hasSecret] {
				t.Errorf("%d secrets of keys in\n%s", n, text)
			}
			for _, secret := range []string{password, newPassword, setUpToken, token, apiKey, "$secret", "users: [secret"} {
				if strings.Contains(text, secret) {
					t.Errorf("%q is in\n%s", secret, text)
				}
			}
		})
	}
}

// OPS-12: with -o json there is one document, also for an error.
func TestJSONIsOneDocument(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	for _, key := range []string{apiKey, "wgk_x_other"} {
		for _, args := range [][]string{
			{"whoami"},
			{"logout"},
			{"sessions"},
			{"sessions", "revoke", "s1"},
			{"password"},
			{"login"},
			{"users", "list"},
			{"users", "get", "alice"},
			{"users", "delete", "bob"},
			{"users", "delete", "bob", "--yes"},
			{"users", "sessions", "bob"},
			{"users", "revoke-sessions", "bob", "--yes"},
			{"roles", "list"},
			{"roles", "delete", "x", "--yes"},
			{"keys", "list"},
			{"keys", "create", "ci", "--role", "x"},
			{"keys", "rotate", "ci"},
			{"keys", "revoke", "ci", "--yes"},
			{"audit"},
		} {
			u := &user{t: t, url: f.URL, environ: []string{"WIGGLE_API_KEY=" + key}, config: t.TempDir()}
			r := u.wiggle(append(args, "-o", "json")...)
			for name, text := range map[string]string{"output": r.out, "error": r.err} {
				if text != "" && !json.Valid([]byte(text)) {
					t.Errorf("%v: %s is %q", args, name, text)
				}
			}
			if (r.out == "") == (r.err == "") {
				t.Errorf("%v printed %q and %q", args, r.out, r.err)
			}
		}
	}
}

// The secret of a new key is all that is on standard output: KEY=$(wiggle keys create ...).
func TestSecretStandsAlone(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	u := &user{t: t, url: f.URL, environ: []string{"WIGGLE_API_KEY=" + apiKey}}
	for _, args := range [][]string{{"keys", "create", "ci", "--role", "worker"}, {"keys", "rotate", "ci"}} {
		if r := u.wiggle(args...); r.out != newKey+"\n" || r.err == "" || strings.Contains(r.err, "secret of") {
			t.Errorf("%v: %+v", args, r)
		}
		if r := u.wiggle(append(args, "-q")...); r.out != newKey+"\n" || r.err != "" {
			t.Errorf("%v -q: %+v", args, r)
		}
	}
}

// Flags become requests.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	u := &user{t: t, url: f.URL, environ: []string{"WIGGLE_API_KEY=" + apiKey}}
	for _, c := range []struct {
		args  []string
		stdin string
		want  string
	}{
		{[]string{"users", "create", "c", "--role", "a,b", "--role", "c", "--password-stdin"}, newPassword, `{"name":"c","password":"another secret of hers","roles":["a","b","c"]}`},
		{[]string{"users", "update", "b", "--role", ""}, "", `{"name":"b","roles":{}}`},
		{[]string{"users", "update", "b", "--enable"}, "", `{"name":"b","disabled":false}`},
		{[]string{"users", "update", "b", "--disable", "--yes"}, "", `{"name":"b","disabled":true}`},
		{[]string{"password", "--password-stdin"}, password + "\n" + newPassword, `{"oldPassword":"the secret of alice","newPassword":"another secret of hers"}`},
		{[]string{"users", "revoke-sessions", "b", "--session", "s2", "--yes"}, "", `{"name":"b","sessionId":"s2"}`},
		{[]string{"roles", "put", "r", "--permission", "a.b:c/d", "--description", "x"}, "", `{"role":{"name":"r","permissions":["a.b:c/d"],"description":"x"}}`},
		{
			[]string{"keys", "create", "k", "--role", "a", "--permission", "a.b", "--expires", "1d", "--certificate", "CN=a,O=b"},
			"",
			`{"name":"k","roles":["a"],"permissions":["a.b"],"lasts":"86400s","certificateSubject":"CN=a,O=b"}`,
		},
		{[]string{"keys", "rotate", "k"}, "", `{"key":"k"}`},
		{[]string{"keys", "rotate", "k", "--overlap", "0", "--yes"}, "", `{"key":"k","overlap":"0s"}`},
		{
			[]string{
				"audit", "--principal", "key/ci", "--action", "a.", "--target", "t", "--denied", "--since", "1h", "--until", "2026-10-03", "--text", "x", "-n", "1",
			},
			"",
			`{"filter":{"principal":"key/ci","action":"a.","target":"t","denied":true,"from":"2026-10-02T11:00:00Z",` +
				`"before":"2026-10-03T00:00:00Z","text":"x"},"pageSize":2}`,
		},
	} {
		u.stdin = c.stdin
		if r := u.wiggle(c.args...); r.code != shell.ExitOK {
			t.Errorf("%v: %+v", c.args, r)
		}
		got, err := protojson.Marshal(f.last())
		var compact bytes.Buffer
		if err != nil || json.Compact(&compact, got) != nil || compact.String() != c.want {
			t.Errorf("%v asks for\n%s\nwant\n%s", c.args, &compact, c.want)
		}
	}
}

// An import of many accounts is several calls.
func TestLargeImport(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	var text strings.Builder
	text.WriteString("users:\n")
	for i := range 2001 {
		fmt.Fprintf(&text, "- {name: u%d, password_hash: x}\n", i)
	}
	u := &user{t: t, url: f.URL, environ: []string{"WIGGLE_API_KEY=" + apiKey}, stdin: text.String()}
	if r := u.wiggle("users", "import", "-"); r.code != shell.ExitOK || r.out != "users imported: 2001\n" {
		t.Errorf("%+v", r)
	}
	if last, ok := f.last().(*wigglev1.ImportAccountsRequest); !ok || len(last.GetAccounts()) != 1 || len(f.asked) != 3 {
		t.Errorf("%d calls, the last with %v", len(f.asked), f.last())
	}
}

// The shell completes the names of roles, and nothing where the server does not tell them.
func TestRoleNamesAreCompleted(t *testing.T) {
	t.Parallel()
	f := newFakeAuth(t)
	for _, args := range [][]string{{"keys", "create", "ci", "--role", ""}, {"users", "update", "bob", "--role", ""}, {"roles", "delete", ""}} {
		u := &user{t: t, url: f.URL, environ: []string{"WIGGLE_API_KEY=" + apiKey}}
		if r := u.wiggle(append([]string{"__complete"}, args...)...); !strings.HasPrefix(r.out, "admin\tmay do everything\nempty\norders-support\thelps\n:4\n") {
			t.Errorf("%v: %+v", args, r)
		}
		u.environ = nil
		if r := u.wiggle(append([]string{"__complete"}, args...)...); !strings.HasPrefix(r.out, ":4\n") {
			t.Errorf("%v, not signed in: %+v", args, r)
		}
	}
}
