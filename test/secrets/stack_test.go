package secrets

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/internal/bench/child"
	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// odd is in every password: what has to be written otherwise in URLs, JSON, SQL and connection strings.
const odd = `&?/"'+ \%:@`

const (
	adminName  = "admin"
	readyEvery = 20 * time.Millisecond
	stopTime   = 20 * time.Second
)

// The databases, and the names of their owners.
const (
	homeDatabase   = "home"
	searchDatabase = "search"
	authDatabase   = "auth"
	wholeDatabase  = "whole" // of `wiggle serve all`
)

func databases() []string { return []string{homeDatabase, searchDatabase, authDatabase, wholeDatabase} }

// stack is a cluster whose every process is one of its own.
type stack struct {
	*testing.T
	*Search

	dir, bin   string
	postgres   *devstack.Server
	nats       *devstack.NATS
	passwords  map[string]string // of the owners of databases
	topology   string            // the path of the document
	environ    []string          // what every process gets
	addresses  map[string]string // of services, by role
	processes  map[string]*child.Process
	adminWord  string
	adminToken string
	serviceKey string
	router     string // its URL
}

// word makes a password, which is a secret.
func (s *stack) word(name string, kept ...Kind) string {
	return s.Use(name, rand.Text()[:16]+odd+rand.Text()[:4], kept...)
}

// write writes a file that only we can read, and returns its path.
func (s *stack) write(name, text string) string {
	s.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	return path
}

// build builds the program that operators have; with the race detector where the tests have it, as its packages are built so already.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "wiggle")
	args := []string{"build", "-o", path, "-race=" + strconv.FormatBool(underRace), "github.com/wiggle-run/wiggle/cmd/wiggle"}
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("build wiggle: %v\n%s", err, out)
	}
	return path
}

// startStack starts everything, and waits until the router serves.
func startStack(t *testing.T) *stack {
	t.Helper()
	s := &stack{
		T: t, Search: &Search{}, bin: build(t), passwords: map[string]string{}, addresses: map[string]string{},
		processes: map[string]*child.Process{},
	}
	var err error
	// Not t.TempDir, which PostgreSQL's account cannot reach when root runs the test.
	if s.dir, err = os.MkdirTemp("/tmp", "wiggle-secrets-"); err != nil { //nolint:usetesting // as said
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(s.dir) })
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	if err := os.Chmod(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.startPostgres()
	t.Cleanup(func() { _ = s.postgres.Stop(context.WithoutCancel(t.Context())) })
	if s.nats, err = devstack.StartNATS(devstack.NATSConfig{Dir: filepath.Join(s.dir, "nats"), Port: freePort(t)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.nats.Stop() })
	hear(t, s.Search, s.nats.URL())
	s.configure()
	t.Cleanup(func() { s.stopServices() })
	for _, role := range slices.Sorted(mapKeys(s.addresses)) {
		s.start(role)
	}
	watch(t, s.Search, s.addresses)
	s.await("/readyz of the router", func() error { return ready(t.Context(), s.router) })
	return s
}

func mapKeys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

// startPostgres starts the server, which logs all that it is told, and asks for passwords.
func (s *stack) startPostgres() {
	s.Helper()
	rules := filepath.Join(s.dir, "hba.conf")
	text := "local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
	if err := os.WriteFile(rules, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	cfg := devstack.ServerConfig{
		Dir: filepath.Join(s.dir, "postgres"), Profile: devstack.Throwaway, TCP: true, SharedBuffers: "64MB", Settings: map[string]string{
			"hba_file": rules, "log_statement": "all", "log_parameter_max_length": "-1", "log_parameter_max_length_on_error": "-1",
			"log_connections": "on", "log_line_prefix": "%m [%p] %u@%d %a ",
		},
	}
	fresh := s.postgres == nil
	if fresh {
		cfg.Port = freePort(s.T)
	} else {
		cfg.Port = s.postgres.Port()
	}
	var err error
	if s.postgres, err = devstack.StartServer(s.Context(), cfg); err != nil {
		s.Fatal(err)
	}
	if !fresh {
		return
	}
	c, err := pgx.Connect(s.Context(), s.postgres.URL("postgres"))
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(s.Context())) }()
	statements := []string{"set log_statement = 'none'"} // what an operator does not write into a log either
	for _, name := range databases() {
		s.passwords[name] = s.word("the password of the database " + name)
		statements = append(statements,
			fmt.Sprintf("create role wiggle_%s login password '%s'", name, strings.ReplaceAll(s.passwords[name], "'", "''")),
			fmt.Sprintf("create database %s owner wiggle_%s", name, name))
	}
	for _, sql := range statements {
		if _, err := c.Exec(s.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			s.Fatal(err)
		}
	}
}

// databaseURL is what an operator writes into the topology.
func (s *stack) databaseURL(name, password string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("wiggle_"+name, password), Host: fmt.Sprintf("127.0.0.1:%d", s.postgres.Port()),
		Path: "/" + name, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// configure writes the files that services are given, and makes their environment.
func (s *stack) configure() {
	s.Helper()
	document := topology.Document{Generations: []topology.DocumentGeneration{
		{ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{0: 1}},
	}}
	document.Defaults.Pool = 6
	for shard, d := range []struct {
		name  string
		roles topology.Roles
	}{
		{homeDatabase, topology.Roles{topology.RoleInstances, topology.RoleHome}},
		{searchDatabase, topology.Roles{topology.RoleSearch}},
		{authDatabase, topology.Roles{topology.RoleAuth}},
	} {
		document.Shards = append(document.Shards, topology.DocumentShard{
			ID: shard, State: topology.StateActive, Roles: d.roles,
			Primary: &topology.DocumentMember{URL: topology.NewCredential(s.databaseURL(d.name, s.passwords[d.name]))},
		})
	}
	text, err := json.Marshal(document)
	if err != nil {
		s.Fatal(err)
	}
	s.topology = s.write("topology.json", string(text))
	s.adminWord = s.word("the administrator's password")
	s.serviceKey = s.Use("the service key", rand.Text()+rand.Text())
	for _, role := range []string{"auth", "instances", "leader", "router", "search"} {
		s.addresses[role] = freeAddress(s.T)
	}
	s.router = "http://" + s.addresses["router"]
	nats := strings.Replace(s.nats.URL(), "nats://", "nats://"+url.UserPassword("wiggle", s.word("the password of NATS")).String()+"@", 1)
	collector := collect(s.T, s.Search)
	s.environ = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "WIGGLE_STORAGE_TOPOLOGY=" + s.topology, "WIGGLE_LOG_LEVEL=debug", "WIGGLE_GRACE=2s",
		"WIGGLE_SERVICE_KEY_FILE=" + s.write("service-key", s.serviceKey+"\n"), "WIGGLE_NATS_URLS=" + nats,
		"WIGGLE_AUTH_ADMIN_NAME=" + adminName, "WIGGLE_AUTH_ADMIN_PASSWORD_FILE=" + s.write("admin-password", s.adminWord+"\n"),
		"WIGGLE_ROUTER_URLS=" + s.router, "WIGGLE_SERVER=" + s.router,
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_BSP_SCHEDULE_DELAY=100",
		"OTEL_METRIC_EXPORT_INTERVAL=5000", "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=1.0",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20" + s.Use("the collector's token", rand.Text()),
	}
	for role, address := range s.addresses {
		s.environ = append(s.environ, "WIGGLE_"+strings.ToUpper(role)+"_ADDR="+address)
		if role != "router" {
			s.environ = append(s.environ, "WIGGLE_"+strings.ToUpper(role)+"_URLS=http://"+address)
		}
	}
}

// start starts a service; all lives of it share a log.
func (s *stack) start(role string) {
	s.Helper()
	p, err := child.Start([]string{s.bin, "serve", role}, s.dir, role, "", s.environ)
	if err != nil {
		s.Fatal(err)
	}
	s.processes[role] = p
	go func() {
		var out bytes.Buffer
		_, _ = out.ReadFrom(p.Stdout) // which ends with the process
		s.Add(Outputs, "serve "+role, out.String())
	}()
}

func (s *stack) stopServices() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), stopTime)
	defer cancel()
	for _, role := range []string{"search", "leader", "router", "auth", "instances"} {
		if p := s.processes[role]; p != nil {
			p.Stop(ctx)
		}
		delete(s.processes, role)
	}
}

// restart stops a service and starts it again.
func (s *stack) restart(role string) {
	s.Helper()
	s.processes[role].Stop(s.Context())
	s.start(role)
}

// command is what a run of the program is given beside its arguments.
type command struct {
	stdin   string
	environ []string
	// alone leaves out the environment of the services.
	alone bool
	// fails is whether it is meant to; says are texts of which it then has to say one.
	fails bool
	says  []string
}

// wiggle runs the program to its end and returns its standard output, which is not noted: it may be for a secret to be told.
func (s *stack) wiggle(c command, args ...string) (stdout string) {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), s.bin, args...)
	environ := s.environ
	if c.alone {
		environ = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "WIGGLE_SERVER=" + s.router}
	}
	// With the race detector a program waits a second before it ends; there are many here.
	cmd.Env = append(append(slices.Clip(environ), "GORACE=atexit_sleep_ms=0"), c.environ...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &typing{s: s, text: strings.NewReader(c.stdin)}, &out, &errs
	err := cmd.Run()
	s.Add(Outputs, "wiggle "+args[0], errs.String())
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended || (err != nil) != c.fails {
		s.Errorf("wiggle %s: %v\n%s", args[0], err, errs.String())
	}
	if c.says != nil && !slices.ContainsFunc(c.says, func(text string) bool { return strings.Contains(errs.String(), text) }) {
		s.Errorf("wiggle %s says none of %q:\n%s", args[0], c.says, errs.String())
	}
	return out.String()
}

// typing is what is typed into a command: not before the command was seen in the list of processes, where the look of every
// lookEvery may miss one that ends soon.
type typing struct {
	s    *stack
	text *strings.Reader
	seen bool
}

func (t *typing) Read(p []byte) (int, error) {
	if !t.seen {
		t.seen = true
		listProcesses(t.s.Search)
	}
	return t.text.Read(p)
}

// see is wiggle for commands whose output tells no secret.
func (s *stack) see(c command, args ...string) string {
	s.Helper()
	out := s.wiggle(c, args...)
	s.Add(Outputs, "wiggle "+strings.Join(args, " "), out)
	return out
}

// await tries until there is no error.
func (s *stack) await(what string, try func() error) {
	s.Helper()
	again := time.NewTicker(readyEvery)
	defer again.Stop()
	deadline := time.After(time.Minute)
	for {
		err := try()
		if err == nil {
			return
		}
		for role, p := range s.processes {
			if ended := p.Ended(); ended != nil {
				s.Fatalf("%s: %s: %v", what, role, ended)
			}
		}
		select {
		case <-again.C:
		case <-deadline:
			s.Fatalf("%s: not so in a minute: %v", what, err)
		}
	}
}

func ready(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("answers %s", res.Status)
	}
	return nil
}
