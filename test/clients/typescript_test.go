//go:build clients

package clients

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/demo"
	"github.com/wiggle-run/wiggle/pkg/definitionfile"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
	"github.com/wiggle-run/wiggle/test/pages"
)

const (
	example = "../../examples/typescript"
	// npmTime bounds a command of npm, the first of which fetches packages; ordersTime a run of orders.
	npmTime    = 5 * time.Minute
	ordersTime = time.Minute
	orders     = 5
)

// testTypeScript does what the example's README says: the Go workers do all steps of the process but label, which the
// worker in TypeScript does, also after its connection broke.
func (s *stack) testTypeScript(t *testing.T) {
	readme, err := pages.Read(example + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"npm ci", "npm run build", "npm run worker", "npm run client -- 5", "npm test"}
	if got := pages.Commands(readme, "npm"); !slices.Equal(got, want) {
		t.Fatalf("the README's commands are %q, this test runs %q", got, want)
	}
	for _, command := range []string{"npm ci", "npm run build", "npm test"} {
		s.npm(t, npmTime, command, "")
	}
	client, worker := s.typeScriptKeys(t, readme)
	s.register(t)
	s.runDemo(t)
	s.register(t)
	s.refuseOrders(t, "", "unauthenticated")
	s.refuseOrders(t, worker, "permission_denied")
	running := s.startWorker(t, worker)
	s.runOrders(t, client)
	s.relay.close()
	s.relay.open()
	s.runOrders(t, client)
	running.stop(t)
}

// typeScriptKeys makes the keys of the client and of the worker as the README says.
func (s *stack) typeScriptKeys(t *testing.T, readme []pages.Block) (client, worker string) {
	t.Helper()
	dir, made := t.TempDir(), pages.Commands(readme, "wiggle keys create")
	for _, command := range made {
		if out, err := s.sh(t, dir, command, ""); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	return readKey(t, dir, "client.key"), readKey(t, dir, "worker.key")
}

// refuseOrders has the client try to start an order with a key that does not do.
func (s *stack) refuseOrders(t *testing.T, key, want string) {
	t.Helper()
	if out, err := s.runNPM(t, ordersTime, "npm run client -- 1", key); err == nil || !strings.Contains(out, want) {
		t.Errorf("with the key %.8q the client ends with %v, want %s:\n%s", key, err, want, out)
	}
}

// npm runs a command in the example's folder, with a key if there is one, and returns what it prints.
func (s *stack) npm(t *testing.T, limit time.Duration, command, key string) string {
	t.Helper()
	began := time.Now()
	out, err := s.runNPM(t, limit, command, key)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	t.Logf("%s took %v", command, time.Since(began).Round(time.Millisecond))
	return out
}

func (s *stack) runNPM(t *testing.T, limit time.Duration, command, key string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	words := strings.Fields(command)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir, cmd.Env = example, append(os.Environ(), "WIGGLE_SERVER=http://"+s.relay.addr, "WIGGLE_API_KEY="+key)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// register is `wiggle register -f order-fulfilment.yaml`.
func (s *stack) register(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(example + "/order-fulfilment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := definitionfile.Parse("order-fulfilment.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	definition, err := wiggle.FromProto(parsed)
	if err != nil {
		t.Fatal(err)
	}
	if registered, err := s.Client.Register(t.Context(), definition); err != nil || !registered.Created {
		t.Fatalf("%+v, %v", registered, err)
	}
}

// runDemo is `wiggle dev --demo`, which needs no Node, whatever was registered before: it makes its own process the newest.
func (s *stack) runDemo(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), ordersTime)
	defer cancel()
	result, err := demo.Run(ctx, s.Client, s.Shop, demo.Options{Count: orders, Seed: 1})
	if err != nil || result.Completed != orders {
		t.Fatalf("%+v, %v", result, err)
	}
}

// runOrders has the client start orders. Each must have ended well, with label done by the worker in TypeScript and
// everything else by those in Go.
func (s *stack) runOrders(t *testing.T, key string) {
	t.Helper()
	out := s.npm(t, ordersTime, fmt.Sprintf("npm run client -- %d", orders), key)
	var ids []string
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); len(words) > 1 && strings.HasPrefix(words[0], "wfi.") && words[1] == "COMPLETED" {
			ids = append(ids, words[0])
		}
	}
	if len(ids) != orders {
		t.Fatalf("%d of %d orders are told to be completed:\n%s", len(ids), orders, out)
	}
	for _, id := range ids {
		by := map[string]string{}
		for entry, err := range s.Client.History(t.Context(), id) {
			if err != nil {
				t.Fatal(err)
			}
			if entry.Step != "" {
				by[entry.Step] = entry.Worker
			}
		}
		if len(by) < 9 {
			t.Errorf("%s has the steps %v", id, by)
		}
		for step, worker := range by {
			if inTypeScript := strings.HasPrefix(worker, "typescript-"); inTypeScript != (step == "label") {
				t.Errorf("%s: the step %s was done by %q", id, step, worker)
			}
		}
	}
}

// worker is the process of `npm run worker`.
type worker struct {
	cmd *exec.Cmd
	out *output
}

// output collects what a process prints, while it does.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	ready chan struct{}
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := strings.Contains(o.text.String(), "serving")
	n, err := o.text.Write(p)
	if !before && strings.Contains(o.text.String(), "serving") {
		close(o.ready)
	}
	return n, err
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// startWorker runs what `npm run worker` runs, without npm between, so that a signal reaches it.
func (s *stack) startWorker(t *testing.T, key string) *worker {
	t.Helper()
	w := &worker{exec.CommandContext(t.Context(), "node", "dist/worker.js"), &output{ready: make(chan struct{})}}
	w.cmd.Dir, w.cmd.Env = example, s.environment(key)
	w.cmd.Stdout, w.cmd.Stderr = w.out, w.out
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.out.ready:
	case <-time.After(ordersTime):
		t.Fatalf("the worker does not begin to serve:\n%s", w.out)
	}
	return w
}

// stop ends the worker as Ctrl-C does. It has nothing to do, so it must not take its grace.
func (w *worker) stop(t *testing.T) {
	t.Helper()
	began := time.Now()
	if err := w.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Wait(); err != nil {
		t.Errorf("the worker ended with %v\n%s", err, w.out)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the worker took %v to stop, with nothing under way", took)
	}
}
