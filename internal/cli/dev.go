package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/app/dev"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/internal/cli/timeline"
	"github.com/wiggle-run/wiggle/internal/demo"
	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
)

const (
	defaultPort        = 8420
	defaultDevShards   = 2
	defaultWorkers     = 2
	defaultConcurrency = 64
)

// devFlags are those of `wiggle dev`.
type devFlags struct {
	dev.Options
	demo int
	seed uint64
	exit bool
	log  string
}

func newDev(p *Program) *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything on this machine, with a sample workflow",
		Long: `Run everything in one process: PostgreSQL with a database for each shard, NATS, the router, the
instances service, the leader, the search and the auth service, and workers for the sample workflow
order-fulfilment. Everybody may do everything, as nobody else reaches it; --auth has callers checked.

PostgreSQL is found on the machine, or else installed or fetched once. The data stays in the
data directory until --reset; Ctrl-C stops everything and leaves no process behind.`,
		Example: `  wiggle dev
  wiggle dev --demo 1000 --exit                 Run 1000 orders, show how it went, and stop
  wiggle dev --auth                             With permissions: then wiggle login --name admin
  wiggle dev --data-dir /tmp/w --port 0 -o json Say in JSON where it runs`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.dev(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.DataDir, "data-dir", "",
		"`directory` for all data (default /var/lib/wiggle-dev for root, else ~/.local/share/wiggle-dev)")
	flags.BoolVar(&f.Reset, "reset", false, "delete the data of earlier runs first")
	flags.IntVar(&f.Port, "port", defaultPort, "port of the router; 0 takes one that is free")
	flags.IntVar(&f.Shards, "shards", defaultDevShards, fmt.Sprintf("how many instance shards, 1 to %d", dev.MaxShards))
	flags.IntVar(&f.Replicas, "replicas", 0,
		fmt.Sprintf("how many streaming replicas the database has, 0 to %d; each is a copy of all data, made anew", dev.MaxReplicas))
	flags.IntVar(&f.Workers, "workers", defaultWorkers, "how many workers serve the sample workflow")
	flags.BoolVar(&f.Auth, "auth", false, "callers need a key or a session and permissions, as in production; makes an administrator")
	flags.BoolVar(&f.Durable, "durable", true, "flush commits to disk; without it a crash of the machine may lose data")
	flags.StringVar(&f.log, "log", "warn", "least `level` that the services log to standard error: debug, info, warn or error")
	flags.IntVar(&f.demo, "demo", 0, "run so many orders through the sample workflow and show how it went")
	flags.Uint64Var(&f.seed, "seed", 1, "which orders the demo makes")
	flags.BoolVar(&f.exit, "exit", false, "stop when the demo is done; without a demo, when everything runs")
	return cmd
}

func (f *devFlags) check(cmd *cobra.Command) error {
	switch {
	case f.Shards < 1 || f.Shards > dev.MaxShards:
		return shell.Usage(cmd, fmt.Errorf("--shards %d: use 1 to %d", f.Shards, dev.MaxShards))
	case f.Replicas < 0 || f.Replicas > dev.MaxReplicas:
		return shell.Usage(cmd, fmt.Errorf("--replicas %d: use 0 to %d", f.Replicas, dev.MaxReplicas))
	case f.Port < 0 || f.Port > 65535:
		return shell.Usage(cmd, fmt.Errorf("--port %d: use 1 to 65535, or 0 for one that is free", f.Port))
	case f.demo < 0:
		return shell.Usage(cmd, fmt.Errorf("--demo %d: use 1 or more", f.demo))
	case f.Workers < 0 || f.demo > 0 && f.Workers == 0:
		return shell.Usage(cmd, fmt.Errorf("--workers %d: use 1 or more; nothing else runs the steps", f.Workers))
	}
	if err := f.LogLevel.UnmarshalText([]byte(f.log)); err != nil {
		f.LogLevel = slog.LevelWarn
		return shell.Usage(cmd, fmt.Errorf("--log %q: use debug, info, warn or error", f.log))
	}
	return nil
}

func (p *Program) dev(cmd *cobra.Command, f devFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	f.Concurrency, f.Progress = defaultConcurrency, p.Err
	f.Ready = func(ctx context.Context, s *dev.Stack) error {
		if f.demo > 0 {
			if err := p.demo(ctx, s, f); err != nil || f.exit {
				return err
			}
		} else if err := p.welcome(s); err != nil || f.exit {
			return err
		}
		<-ctx.Done()
		return nil
	}
	err := dev.Run(cmd.Context(), f.Options)
	if signal, ok := errors.AsType[*lifecycle.SignalError](context.Cause(cmd.Context())); ok && err == nil {
		if f.demo > 0 && f.exit {
			return signal // it was to come to an end by itself, and did not
		}
		_, _ = fmt.Fprintln(p.Err, "stopped; the data stays")
	}
	return err
}

// devJSON is what `wiggle dev -o json` prints when everything runs.
type devJSON struct {
	Server      string            `json:"server"`
	DataDir     string            `json:"data_dir"`
	PostgresLog string            `json:"postgres_log"`
	NATS        string            `json:"nats"`
	Admin       *devAdminJSON     `json:"admin,omitempty"`
	Databases   []devDatabaseJSON `json:"databases"`
	Workflow    string            `json:"workflow"`
	Version     int               `json:"version"`
	Workers     int               `json:"workers"`
	Seconds     float64           `json:"seconds"`
}

// devAdminJSON is how to sign in, with --auth.
type devAdminJSON struct {
	Name         string `json:"name"`
	PasswordFile string `json:"password_file"`
}

type devDatabaseJSON struct {
	Shard    int      `json:"shard"`
	Roles    string   `json:"roles"`
	URL      string   `json:"url"`
	Replicas []string `json:"replicas,omitempty"`
}

func (p *Program) welcome(s *dev.Stack) error {
	if p.json() {
		return p.printJSON(devDocument(s))
	}
	p.printWhere(s)
	sample := `{"customer":{"name":"Ada Lovelace"},"lines":[{"sku":"tea","quantity":2}]}`
	wiggle := commandName()
	if s.URL != defaultServer {
		p.printf("\nexport %s=%s\n", envServer, s.URL)
	}
	p.printf(`
try it
  %[1]s start %[2]s --input '%[3]s' --wait
  %[1]s list
  %[1]s get ID --history
  %[1]s search lovelace
  %[1]s events tail --from earliest

or over HTTP
  curl -H 'Content-Type: application/json' %[4]s/wiggle.v1.InstanceService/StartInstance \
    -d '{"workflow":"%[2]s","input":{"json":%[3]s}}'

Ctrl-C stops it; the data stays.
`, wiggle, demo.Workflow, sample, s.URL)
	return nil
}

func devDocument(s *dev.Stack) devJSON {
	document := devJSON{
		Server: s.URL, DataDir: s.DataDir, PostgresLog: s.LogFile, NATS: s.NATSURL, Workflow: demo.Workflow, Version: s.Workflow.Version,
		Workers: s.Workers(), Seconds: s.Took.Seconds(),
	}
	if s.AdminName != "" {
		document.Admin = &devAdminJSON{s.AdminName, s.AdminPasswordFile}
	}
	for _, d := range s.Databases {
		document.Databases = append(document.Databases, devDatabaseJSON{d.Shard, d.Roles.String(), d.URL, d.Replicas})
	}
	return document
}

func (p *Program) printWhere(s *dev.Stack) {
	p.printf("Wiggle runs at %s (after %s)\n\n", s.URL, timeline.Duration(s.Took))
	t := shell.NewTable(p.Out)
	t.Row("  data", s.DataDir)
	t.Row("  PostgreSQL", fmt.Sprintf("%d in %s", s.Postgres.Major, s.Postgres.BinDir))
	t.Row("  its log", s.LogFile)
	for _, d := range s.Databases {
		t.Row("  shard "+strconv.Itoa(d.Shard), d.URL+"  ("+strings.ReplaceAll(d.Roles.String(), ",", ", ")+")")
		for i, url := range d.Replicas {
			t.Row("    replica "+strconv.Itoa(i), url)
		}
	}
	t.Row("  NATS", s.NATSURL+"  (stream "+bus.StreamName+", in "+s.NATSDir+")")
	t.Row("  workflow", fmt.Sprintf("%s version %d, served by %d workers here", demo.Workflow, s.Workflow.Version, s.Workers()))
	t.Row("  metrics", s.URL+"/metrics")
	if s.AdminName != "" {
		t.Row("  sign in", fmt.Sprintf("%s login --name %s, with the password in %s", commandName(), s.AdminName, s.AdminPasswordFile))
	} else {
		t.Row("  sign in", "nobody needs to: everybody may do everything (--auth changes that)")
	}
	t.Flush()
}

// commandName is how to call this program again: not by the temporary file that go run makes.
func commandName() string {
	if path, err := os.Executable(); err == nil && strings.Contains(path, "go-build") {
		return "go run ./cmd/wiggle"
	}
	return "wiggle"
}
