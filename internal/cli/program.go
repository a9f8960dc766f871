package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/wiggle-run/wiggle/internal/cli/accounts"
	"github.com/wiggle-run/wiggle/internal/cli/events"
	"github.com/wiggle-run/wiggle/internal/cli/measure"
	"github.com/wiggle-run/wiggle/internal/cli/schedules"
	"github.com/wiggle-run/wiggle/internal/cli/search"
	"github.com/wiggle-run/wiggle/internal/cli/shards"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
)

// Program is what a command sees of the process around it.
type Program struct {
	In       io.Reader
	Out, Err io.Writer
	// Environ is as os.Environ returns it.
	Environ []string
	// Location is the time zone that times are shown in.
	Location *time.Location
	// Now is the time.
	Now func() time.Time
	// Terminal tells whether Err is a terminal, which progress is drawn on, and how many columns it has.
	Terminal bool
	Columns  int
	// Colours tells whether Out is a terminal, on which found words stand out.
	Colours bool
	// ConfigDir is the user's directory for configuration; empty if there is none.
	ConfigDir string
	// Interactive tells whether In is a terminal, where somebody answers questions. ReadSecret reads a line there without
	// showing it.
	Interactive bool
	ReadSecret  func() (string, error)

	output     string
	server     string
	namespace  string
	timeout    time.Duration
	apiKeyFile string
	shown      credentialSource
}

// Main runs the command that the process was started with and returns its exit code.
func Main() int {
	ctx, stop := lifecycle.WithSignals(context.Background())
	defer stop()
	columns, _, err := term.GetSize(int(os.Stderr.Fd()))
	configDir, _ := os.UserConfigDir() // where there is none, no session is found
	p := &Program{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Now: time.Now,
		Location: time.Local, //nolint:gosmopolitan // times are shown to whoever sits here
		Terminal: err == nil, Columns: columns, Colours: term.IsTerminal(int(os.Stdout.Fd())),
		ConfigDir: configDir, Interactive: term.IsTerminal(int(os.Stdin.Fd())), ReadSecret: readSecret,
	}
	return Run(ctx, p, os.Args[1:])
}

// readSecret reads a line from the terminal without showing it.
func readSecret() (string, error) {
	text, err := term.ReadPassword(int(os.Stdin.Fd()))
	_, _ = os.Stderr.WriteString("\n") // the one that was typed is not shown either
	if err != nil {
		return "", fmt.Errorf("read from the terminal: %w", err)
	}
	return string(text), nil
}

// Run runs a command and returns its exit code. What went wrong has been told.
func Run(ctx context.Context, p *Program, args []string) int {
	root := newRoot(p)
	if wantsJSON(args) {
		p.output = outputJSON // also for a command line that cannot be read to its end
	}
	root.SetArgs(args)
	root.SetIn(p.In)
	root.SetOut(p.Out)
	root.SetErr(p.Err)
	return p.conclude(ctx, root.ExecuteContext(ctx))
}

// wantsJSON looks for -o json before flags are read.
func wantsJSON(args []string) bool {
	for i, arg := range args {
		switch {
		case arg == "--":
			return false
		case arg == "-ojson", arg == "-o=json", arg == "--output=json":
			return true
		case (arg == "-o" || arg == "--output") && i+1 < len(args) && args[i+1] == outputJSON:
			return true
		}
	}
	return false
}

const (
	outputText = "text"
	outputJSON = "json"
	outputYAML = "yaml"

	envServer     = "WIGGLE_SERVER"
	defaultServer = "http://127.0.0.1:8420"
	// defaultTimeout bounds a command that waits for nothing.
	defaultTimeout = 30 * time.Second
)

// getenv reads the program's environment.
func (p *Program) getenv(name string) (string, bool) {
	return process.Lookup(p.Environ)(name)
}

func (p *Program) json() bool { return p.output == outputJSON }

// unicode tells whether the terminal shows more than ASCII, as the locale says.
func (p *Program) unicode() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value, _ := p.getenv(name); value != "" {
			value = strings.ToLower(value)
			return strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
		}
	}
	return false
}

// width is how many columns output may have.
func (p *Program) width() int {
	if p.Columns <= 0 {
		return 80
	}
	return min(p.Columns, 120)
}

const (
	groupRun      = "run"
	groupOperate  = "operate"
	groupInstance = "instances"
	groupAccounts = "accounts"
)

func newRoot(p *Program) *cobra.Command {
	root := &cobra.Command{
		Use:   "wiggle",
		Short: "A durable workflow engine on PostgreSQL",
		Long: `Wiggle is a durable workflow engine on PostgreSQL.

A workflow is a graph of named steps; an instance is one run of it, which survives crashes
of anything but the database. Steps run in workers, which pull their work from the router.`,
		Example: `  wiggle dev                          Run everything here, with a sample workflow
  wiggle dev --demo 1000 --exit       Run 1000 orders over two shards and show how it went
  wiggle start order-fulfilment --input @order.json --wait
  wiggle list --state failed --since 1h
  wiggle get ID --history`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	flags := root.PersistentFlags()
	flags.StringVarP(&p.output, "output", "o", outputText, "`format` of what is printed: text or json")
	flags.StringVar(&p.server, "server", "", "`URL` of the router (default $"+envServer+", else "+defaultServer+")")
	flags.StringVar(&p.apiKeyFile, "api-key-file", "",
		"`file` with the API key (default the key in $"+envAPIKey+" or $"+envAPIKeyFile+", else the session of wiggle login)")
	flags.StringVar(&p.namespace, "namespace", "", "namespace to work in (default \"default\")")
	flags.DurationVar(&p.timeout, "timeout", defaultTimeout,
		"how long a command may take; waiting takes as long as it takes unless this is given")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		[]string{outputText, outputJSON}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	root.SetFlagErrorFunc(shell.Usage)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return p.checkFlags(cmd) }
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run Wiggle:"},
		&cobra.Group{ID: groupInstance, Title: "Work with workflows and instances:"},
		&cobra.Group{ID: groupOperate, Title: "Operate a cluster:"},
		&cobra.Group{ID: groupAccounts, Title: "Sign in, and say who may do what:"},
	)
	sh := p.shell()
	root.AddCommand(inGroup(groupRun, newDev(p), newServe(p), measure.New(sh))...)
	root.AddCommand(inGroup(groupInstance,
		newRegister(p), newWorkflows(p), newStart(p), newGet(p), newList(p), newCount(p), search.New(sh), events.New(sh), newCancel(p),
		schedules.New(sh))...)
	root.AddCommand(inGroup(groupOperate, shards.New(sh), newMigrate(p), newTopology(p), newIDs(p))...)
	root.AddCommand(inGroup(groupAccounts, accounts.New(sh)...)...)
	root.AddCommand(newVersion(p), newSettings(p), newExitCodes(), measure.NewWorker(sh), measure.NewNATS())
	return root
}

func inGroup(id string, commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.GroupID = id
	}
	return commands
}

// formatsOf is the annotation of commands that print more than text and json.
const formatsOf = "formats"

// checkFlags checks what cobra does not.
func (p *Program) checkFlags(cmd *cobra.Command) error {
	if err := cmd.ValidateFlagGroups(); err != nil {
		return shell.Usage(cmd, err)
	}
	allowed := outputText + " " + outputJSON
	if more := cmd.Annotations[formatsOf]; more != "" {
		allowed += " " + more
	}
	for name := range strings.FieldsSeq(allowed) {
		if strings.EqualFold(p.output, name) {
			p.output = name
			return nil
		}
	}
	wrong := p.output
	p.output = outputText
	return shell.Usage(cmd, shell.Failed("--output %q: use one of %s", wrong, strings.Join(strings.Fields(allowed), ", ")))
}
