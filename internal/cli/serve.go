package cli

import (
	"context"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/app"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/services/auth"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/leader"
	"github.com/wiggle-run/wiggle/services/router"
	"github.com/wiggle-run/wiggle/services/search"
)

func newServe(p *Program) *cobra.Command {
	cmd := shell.Family(&cobra.Command{
		Use:   "serve",
		Short: "Run services for production",
		Long: `Run one service, or all of them in one process, until SIGTERM or Ctrl-C; then what is in
flight is finished within the grace. A second signal stops at once.

Everything is configured by the environment; wiggle settings lists it.`,
		Example: `  WIGGLE_STORAGE_TOPOLOGY=topology.json wiggle serve instances
  WIGGLE_STORAGE_TOPOLOGY=topology.json WIGGLE_INSTANCES_URLS=http://10.0.0.5:8430 wiggle serve router
  WIGGLE_DATABASE_URL=postgres://db/wiggle wiggle serve all`,
	})
	for _, service := range []struct {
		name, short string
		run         func(ctx context.Context, environ []string) error
	}{
		{"router", "Run the router, which clients and workers talk to", router.Main},
		{"instances", "Run the instances service, which the router talks to", instances.Main},
		{"search", "Run the search service, which keeps the search index and answers from it", search.Main},
		{"leader", "Run the leader, which does the cluster's clock-driven work", leader.Main},
		{"auth", "Run the auth service, which keeps accounts, keys and the audit log", auth.Main},
		{"all", "Run every service in one process", app.ServeAll},
	} {
		cmd.AddCommand(&cobra.Command{
			Use: service.name, Short: service.short, Args: shell.Args(0, 0, ""),
			RunE: func(cmd *cobra.Command, _ []string) error { return service.run(cmd.Context(), p.Environ) },
		})
	}
	return cmd
}

func newSettings(p *Program) *cobra.Command {
	markdown := false
	cmd := &cobra.Command{
		Use:   "settings",
		Short: "List the environment variables that configure the services",
		Args:  shell.Args(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			rows := app.Table()
			switch {
			case markdown:
				p.printf("%s", SettingsPage())
			case p.json():
				return p.printJSON(map[string]any{"settings": rows})
			default:
				for _, row := range rows {
					fallback := row.Default
					if fallback == "" {
						fallback = "not set"
					}
					p.printf("%s (%s)\n    %s\n", row.Name, fallback, row.Doc)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&markdown, "markdown", false, "print docs/settings.md")
	_ = cmd.Flags().MarkHidden("markdown")
	return cmd
}

// SettingsPage is docs/settings.md.
func SettingsPage() string {
	return `# Settings

<!-- Generated from the code by: go generate ./internal/cli -->

Every process is configured by its environment (OPS-2). A name that begins with WIGGLE_ and is none of these stops the
start, and so does a value that is not right; all problems are named at once. Durations are written as 500ms, 90s, 15m, 36h
or 7d, sizes as a number of bytes or as 512KiB, 2MiB, 1GiB. Traces and metrics are exported as OpenTelemetry's own variables
say (OTEL_EXPORTER_OTLP_ENDPOINT and so on).

` + settings.Markdown(app.Table())
}

func newVersion(p *Program) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: shell.Args(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			if p.json() {
				return p.printJSON(map[string]any{"version": process.Release()})
			}
			p.printf("wiggle %s\n", process.Release())
			return nil
		},
	}
}

func newMigrate(p *Program) *cobra.Command {
	var shards []int
	verify := false
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the schemas of the shards up to date",
		Long: `Apply pending migrations to the databases of the topology, and say what was applied to which
shard. Services that are running go on meanwhile: schemas only go forward, by steps that the
release before can live with. A schema that is newer than this binary is left as it is; it is a
failure only if this binary cannot work with it.`,
		Example: `  WIGGLE_STORAGE_TOPOLOGY=topology.json wiggle migrate
  WIGGLE_DATABASE_URL=postgres://db/wiggle wiggle migrate --verify`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.migrate(cmd, shards, verify) },
	}
	cmd.Flags().IntSliceVar(&shards, "shard", nil, "only these shards")
	cmd.Flags().BoolVar(&verify, "verify", false, "apply nothing; fail if something is pending (also WIGGLE_SCHEMA_MODE=verify)")
	return cmd
}

type schemaJSON struct {
	Shard   int      `json:"shard"`
	Schema  string   `json:"schema"`
	Version int64    `json:"version"`
	Target  int64    `json:"target"`
	Applied []string `json:"applied"`
	Pending []string `json:"pending"`
}

func (p *Program) migrate(cmd *cobra.Command, shards []int, verify bool) error {
	s, err := app.LoadMigrate(p.Environ)
	if err != nil {
		return err
	}
	opts := app.MigrateOptions{Shards: shards, Verify: verify || s.Verify}
	schemas, failed, err := app.Migrate(cmd.Context(), s.Topology, opts)
	if err != nil {
		return err
	}
	if p.json() {
		document := struct {
			Schemas []schemaJSON       `json:"schemas"`
			Failed  []shell.ShardError `json:"failed"`
		}{[]schemaJSON{}, failuresJSON(failed)}
		for _, m := range schemas {
			document.Schemas = append(document.Schemas, schemaJSON{m.Shard, m.Name, m.Version, m.Target, list(m.Applied), list(m.Pending)})
		}
		err = p.printJSON(document)
	} else {
		p.printSchemas(schemas, failed)
	}
	if err == nil && len(failed) > 0 {
		err = &shell.Failure{Exit: shell.ExitFailure, Kind: "migrate", Message: strconv.Itoa(len(failed)) + " shards are not up to date"}
	}
	return err
}

// list is for documents, in which an empty list is [] and not null.
func list(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}

func failuresJSON(failed []app.ShardFailure) []shell.ShardError {
	out := []shell.ShardError{}
	for _, f := range failed {
		out = append(out, shell.ShardError{Shard: f.Shard, Error: f.Detail()})
	}
	return out
}

func (p *Program) printSchemas(schemas []app.Schema, failed []app.ShardFailure) {
	for _, m := range schemas {
		if m.Version > m.Target { // where this binary cannot work with that, it is a failure below
			p.printf("shard %d, schema %s: version %d, this binary knows %d\n", m.Shard, m.Name, m.Version, m.Target)
		} else {
			p.printf("shard %d, schema %s: version %d of %d\n", m.Shard, m.Name, m.Version, m.Target)
		}
		for _, name := range m.Applied {
			p.printf("  applied %s\n", name)
		}
		for _, name := range m.Pending {
			p.printf("  pending %s\n", name)
		}
	}
	for _, f := range failed {
		p.printf("shard %d: %s\n", f.Shard, f.Detail())
	}
}

// readFile reads a file, or standard input for "-".
func (p *Program) readFile(name string) ([]byte, error) {
	if name == "-" {
		return readAll(p.In)
	}
	return os.ReadFile(name)
}
