package readme

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/test/pages"
	"github.com/wiggle-run/wiggle/test/ports"
)

const (
	alicePassword = "alices-new-password"
	bobPassword   = "bobs-first-password"
	// carolPassword is that of the hash on the page.
	carolPassword = "carols-old-password"
	// auditTarget is the instance whose entries the page asks for.
	auditTarget = "wfi.s1.01k6zqk3v8r5d1f0m9c2x7y4ab"
	// startTime bounds the start of a server, on a machine that is busy with other tests.
	startTime = 2 * time.Minute
)

// startServer starts the test binary as wiggle, with nothing of Wiggle in its environment but what is given, and returns what a
// pattern finds in what it prints. The server ends with the test.
func startServer(t *testing.T, pattern string, environ []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(commandsDir(t), "wiggle"), args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environ...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = startTime
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(startTime, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	prints, search, said := bufio.NewReader(pipe), regexp.MustCompile(pattern), ""
	for {
		line, err := prints.ReadString('\n')
		said += line
		if found := search.FindStringSubmatch(line); found != nil {
			drained := make(chan struct{})
			go func() {
				defer close(drained)
				_, _ = prints.WriteTo(io.Discard)
			}()
			t.Cleanup(func() {
				<-drained
				_ = cmd.Wait() // it was interrupted
			})
			return found[1]
		}
		if err != nil {
			t.Fatalf("the server ends without %q: %v\n%s", pattern, cmd.Wait(), said)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", free[0])
}

// awaitReady waits until a server has all it needs.
func awaitReady(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("%s is not ready", url)
		}
	}
}

// step is a block of a page: how it begins, what it asks, and what is to come of it.
type step struct {
	begins  string
	answers []answer
	check   func(t *testing.T, s *session, shown string)
}

// shows checks that a text has all of these.
func shows(t *testing.T, shown string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(shown, w) {
			t.Errorf("%q is not shown in\n%s", w, shown)
		}
	}
}

// refused checks that a command ends with an exit code, and says why.
func (s *session) refused(code, command string, want ...string) {
	s.t.Helper()
	got, shown := s.fails(command)
	if got != code {
		s.t.Errorf("%s ended with exit code %s, want %s\n%s", command, got, code, shown)
	}
	shows(s.t, shown, want...)
}

func twice(question, text string) []answer {
	return []answer{{question + ": ", text + "\n", true}, {question + ", once more: ", text + "\n", true}}
}

// TestAccounts types every block of docs/accounts.md in order, from the first start of a server on, and checks what the page says
// of each (AUT-1 to AUT-8).
func TestAccounts(t *testing.T) {
	t.Parallel()
	blocks, err := pages.Read("../../docs/accounts.md")
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	url := "http://" + address
	token := startServer(t, `asks for this token: (\S+)`,
		[]string{"WIGGLE_DATABASE_URL=" + pgtest.NewDatabase(t), "WIGGLE_ROUTER_ADDR=" + address}, "serve", "all")
	awaitReady(t, url)

	s := newSession(t)
	for _, yaml := range pages.In(blocks, "yaml") {
		if err := os.WriteFile(filepath.Join(s.dir, "users.yaml"), []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	steps := accountSteps(token)
	for _, block := range blocks {
		if block.Language != "sh" {
			continue
		}
		if len(steps) == 0 || !strings.HasPrefix(block.Text, steps[0].begins) {
			t.Fatalf("docs/accounts.md:%d: nothing here says what comes of\n%s", block.Line, block.Text)
		}
		shown := s.run(strings.ReplaceAll(block.Text, "https://wiggle.example.com", url), steps[0].answers...)
		if steps[0].check != nil {
			steps[0].check(t, s, shown)
		}
		if t.Failed() {
			t.Fatalf("that was docs/accounts.md:%d", block.Line)
		}
		steps = steps[1:]
	}
	if len(steps) > 0 {
		t.Errorf("the page has no block that begins with %q", steps[0].begins)
	}
}

// accountSteps are the blocks of docs/accounts.md.
func accountSteps(token string) []step {
	ofToken := append([]answer{{"setup token: ", token + "\n", true}}, twice("password", alicePassword)...)
	ofBob := append(twice("password of bob", bobPassword), answer{"[y/N] ", "y\n", false}, answer{"[y/N] ", "y\n", false})
	return []step{
		{"export WIGGLE_SERVER=", ofToken, checkFirstAdministrator},
		{"wiggle roles put orders-support", nil, checkRoles},
		{"wiggle users create bob", ofBob, checkPeople},
		{"wiggle keys create shop-worker", nil, checkKeys},
		{"curl ", nil, func(t *testing.T, _ *session, shown string) {
			t.Helper()
			shows(t, shown, `"name":"ci"`, `"kind":"key"`, `"operator"`, `"enforced":true`)
		}},
		{"wiggle keys rotate shop-worker", nil, checkRotation},
		{"wiggle keys rotate ci", []answer{{"[y/N] ", "y\n", false}, {"[y/N] ", "y\n", false}}, func(t *testing.T, s *session, _ string) {
			t.Helper()
			s.run(`while WIGGLE_API_KEY="$KEY" wiggle whoami; do :; done`) // until the router has been told
			s.refused("6", `WIGGLE_API_KEY="$KEY" wiggle whoami`)
		}},
		{"wiggle audit --principal key/ci", nil, func(t *testing.T, _ *session, shown string) {
			t.Helper()
			shows(t, shown, "key/ci", "user.manage", "127.0.0.1", "key ci-2", "wgk_")
		}},
		{"wiggle users reset-password bob", twice("new password of bob", "bobs-second-password"), func(t *testing.T, _ *session, shown string) {
			t.Helper()
			shows(t, shown, "bob has another password", "BY", "ci-2", "user/alice")
		}},
		{"wiggle audit --denied", nil, checkAudit},
		{"wiggle audit --follow", []answer{{"user/carol", ctrlC, false}}, func(t *testing.T, _ *session, shown string) {
			t.Helper()
			shows(t, shown, "denied   user/carol", "instance.cancel  "+auditTarget)
		}},
	}
}

func checkFirstAdministrator(t *testing.T, s *session, shown string) {
	t.Helper()
	shows(t, shown, "signed in at", "as alice", "user", "admin")
	if strings.Contains(shown, alicePassword) {
		t.Errorf("the password is shown in\n%s", shown)
	}
	s.refused("1", "wiggle users delete alice --yes", "administrator")
	s.refused("1", "wiggle users update alice --disable --yes", "administrator")
	s.refused("1", "wiggle users update alice --role operator", "administrator")
	shows(t, s.run(`stat -c '%a' ~/.config/wiggle/credentials.json`), "600")
	s.run("chmod 644 ~/.config/wiggle/credentials.json")
	s.refused("1", "wiggle whoami", "credentials.json")
	s.run("chmod 600 ~/.config/wiggle/credentials.json")
	s.refused("6", "WIGGLE_API_KEY=wgk_none_such wiggle whoami")
}

func checkRoles(t *testing.T, s *session, _ string) {
	t.Helper()
	shows(t, s.run("wiggle roles list"), "orders-support", "reads orders, cancels refunds", "instance.cancel:orders/refund",
		"gpu-worker", "task.poll:*/gpu", "admin", "operator", "viewer", "worker")
	s.refused("1", "wiggle roles put viewer --permission user.manage", "viewer")
}

func checkPeople(t *testing.T, s *session, shown string) {
	t.Helper()
	shows(t, shown, "orders-support", "disabled", "users imported: 1")
	as := func(name, password, do string) string {
		return "printf '" + password + "' | wiggle login --name " + name + " --password-stdin && " + do
	}
	s.run("mv ~/.config/wiggle ~/alice")
	s.refused("6", as("bob", bobPassword, "true"))
	// Carol has her old password, is a viewer, and can give nothing that she has not.
	shows(t, s.run(as("carol", carolPassword, "wiggle whoami")), "viewer")
	s.refused("7", "wiggle users list", "user.read")
	s.refused("7", "wiggle keys create x --role viewer", "key.manage")
	s.refused("7", "wiggle cancel "+auditTarget, "instance.cancel")
	s.run("rm -r ~/.config/wiggle && mv ~/alice ~/.config/wiggle")
	s.refused("3", "wiggle cancel wfi.s0.01k6zqk3v8r5d1f0m9c2x7y4ac")
}

func checkKeys(t *testing.T, s *session, shown string) {
	t.Helper()
	shows(t, shown, "key shop-worker", "wgk_", "CN=worker-7,O=Example")
	secret := regexp.MustCompile(`^wgk_\S+\n$`)
	for name, show := range map[string]string{"shop-worker": "cat key.txt", "ci": `echo "$KEY"`} {
		if got := s.run(show); !secret.MatchString(got) {
			t.Errorf("the secret of %s does not stand alone: %q", name, got)
		}
	}
	shows(t, s.run(`wiggle whoami --api-key-file key.txt && WIGGLE_API_KEY="$KEY" wiggle whoami`), "shop-worker", "worker", "ci", "operator")
	s.refused("7", `WIGGLE_API_KEY="$KEY" wiggle users create mallory --role admin --password-stdin < key.txt`, "user.manage")
	s.refused("7", `WIGGLE_API_KEY="$KEY" wiggle keys create ci-2 --role admin`, "key.manage")
}

func checkRotation(t *testing.T, s *session, shown string) {
	t.Helper()
	shows(t, strings.ToLower(shown), "old secret until", "the secret before works until")
	shows(t, s.run("wiggle whoami --api-key-file key.txt"), "shop-worker")
}

func checkAudit(t *testing.T, s *session, shown string) {
	t.Helper()
	text, document, _ := strings.Cut(shown, "\n{")
	shows(t, text, "key/ci", "user.manage", "127.0.0.1", "user/alice", "wfi.s0.01k6zqk3v8r5d1f0m9c2x7y4ac")
	var audit struct {
		Entries []struct {
			Principal, Target string
			Allowed           bool
		}
	}
	if err := json.Unmarshal([]byte("{"+document), &audit); err != nil || len(audit.Entries) != 1 ||
		audit.Entries[0].Principal != "user/carol" || audit.Entries[0].Target != auditTarget || audit.Entries[0].Allowed {
		t.Errorf("%v, %+v of\n%s", err, audit, document)
	}
}

// TestDevAuth does what the README says of permissions: `wiggle dev --auth`, and as its administrator the rest.
func TestDevAuth(t *testing.T) {
	t.Parallel()
	found := ""
	for _, text := range pages.In(blocks(t), "sh") {
		if strings.HasPrefix(text, "wiggle dev --auth ") {
			found = text
		}
	}
	first, rest, _ := strings.Cut(found, "\n")
	command, login, ok := strings.Cut(first, "# then: ")
	if !ok {
		t.Fatalf("the README does not say how to sign in at wiggle dev --auth:\n%s", found)
	}
	// Not t.TempDir, which PostgreSQL's account cannot reach when root runs the test.
	dir, err := os.MkdirTemp("/tmp", "wiggle-readme-test-") //nolint:usetesting // as said
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	args := slices.Concat(strings.Fields(command)[1:],
		[]string{"--data-dir", dir, "--port", "0", "--shards", "1", "--workers", "1", "--durable=false"})
	url := startServer(t, `Wiggle runs at (\S+)`, nil, args...)
	password, err := os.ReadFile(filepath.Join(dir, "admin-password"))
	if err != nil {
		t.Fatal(err)
	}

	s := newSession(t, "WIGGLE_SERVER="+url)
	s.refused("6", "wiggle whoami", "wiggle login")
	shows(t, s.run(login, answer{"password: ", string(password) + "\n", true}), "signed in at "+url+" as admin")
	s.run("until wiggle audit --denied | grep -q WhoAmI; do :; done") // routers bring what they denied in a moment
	shows(t, s.run(rest), "\nwgk_", "instance.start:orders/refund*", "/wiggle.v1.AuthService/WhoAmI")
	shows(t, s.run("wiggle keys list"), "shop-worker", "worker")
}

// TestUpgrades runs the commands of docs/upgrades.md at a cluster that is upgraded already: nothing is pending, nobody warns.
func TestUpgrades(t *testing.T) {
	t.Parallel()
	blocks, err := pages.Read("../../docs/upgrades.md")
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	document := filepath.Join(t.TempDir(), "topology.json")
	text, err := json.Marshal(map[string]any{
		"shards": []any{map[string]any{
			"id": 0, "state": "active", "roles": []string{"instances", "home", "auth"},
			"primary": map[string]any{"url": pgtest.NewDatabase(t)},
		}},
		"generations": []any{map[string]any{"id": 1, "activeFrom": "2026-01-01T00:00:00Z", "weights": map[string]any{"0": 1}}},
	})
	if err == nil {
		err = os.WriteFile(document, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"WIGGLE_STORAGE_TOPOLOGY=" + document}
	startServer(t, `"msg":"(router serves)"`, append(environ, "WIGGLE_ROUTER_ADDR="+address, "WIGGLE_AUTH=off"), "serve", "all")
	awaitReady(t, "http://"+address)

	s := newSession(t, append(environ, "WIGGLE_SERVER=http://"+address)...)
	s.run("until wiggle migrate --verify; do :; done") // the leader's and auth's schemas come a moment later
	shown := ""
	for _, block := range pages.In(blocks, "sh") {
		shown += s.run(strings.ReplaceAll(block, "127.0.0.1:8420", address))
	}
	shows(t, shown, "wiggle ", "shard 0, schema instances: version", "schema home", "schema leader", "schema auth", `"release":`, `"ready":true`)
	for _, unwanted := range []string{"pending", "warnings", "no: "} {
		if strings.Contains(shown, unwanted) {
			t.Errorf("%q is shown in\n%s", unwanted, shown)
		}
	}
}
