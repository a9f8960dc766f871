package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// startFlags are those of `wiggle start`.
type startFlags struct {
	input    string
	version  int
	id       string
	priority int
	delay    time.Duration
	wait     bool
}

func newStart(p *Program) *cobra.Command {
	var f startFlags
	cmd := &cobra.Command{
		Use:   "start WORKFLOW",
		Short: "Start an instance",
		Long: `Start an instance of a registered workflow and print its id.

The input is JSON: as it stands, from a file (@order.json), or from standard input (-).
With --id a start that is sent again, by you or another, is the same instance.`,
		Example: `  wiggle start order-fulfilment --input '{"customer":{"name":"Ada"},"lines":[{"sku":"tea","quantity":2}]}'
  wiggle start order-fulfilment --input @order.json --wait
  generate-order | wiggle start order-fulfilment --input - --delay 10m -o json`,
		Args: shell.Args(1, 1, "WORKFLOW"),
		RunE: func(cmd *cobra.Command, args []string) error { return p.start(cmd, args[0], f) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.input, "input", "i", "", "the input: `JSON`, @FILE, or - for standard input (default null)")
	flags.IntVar(&f.version, "version", 0, "version to run (default the latest)")
	flags.StringVar(&f.id, "id", "", "`ULID` of the instance: a start with the same one is applied once (default a new one)")
	flags.IntVar(&f.priority, "priority", 5, "priority, 0 (lowest) to 9")
	flags.DurationVar(&f.delay, "delay", 0, "how long to wait before the first step")
	flags.BoolVarP(&f.wait, "wait", "w", false, "wait for the end and print the result; exit with 5 if it is not COMPLETED")
	return cmd
}

// startedJSON is what `wiggle start -o json` prints.
type startedJSON struct {
	ID       string        `json:"id"`
	Version  int           `json:"version"`
	Created  bool          `json:"created"`
	Instance *instanceJSON `json:"instance,omitempty"`
}

func (p *Program) start(cmd *cobra.Command, workflow string, f startFlags) error {
	input, err := p.readInput(cmd, f.input)
	if err != nil {
		return err
	}
	options, err := f.options(cmd)
	if err != nil {
		return err
	}
	return p.withClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		run, err := c.Start(ctx, workflow, input, options...)
		if err != nil {
			return err
		}
		if !f.wait {
			if p.json() {
				return p.printJSON(startedJSON{ID: run.ID, Version: run.Version, Created: run.Created})
			}
			p.printf("%s\n", run.ID)
			return nil
		}
		return p.waitFor(cmd, c, run)
	})
}

func (f startFlags) options(cmd *cobra.Command) ([]wiggle.StartOption, error) {
	var options []wiggle.StartOption
	if f.version < 0 {
		return nil, shell.Usage(cmd, fmt.Errorf("--version %d: versions begin with 1", f.version))
	}
	if f.version > 0 {
		options = append(options, wiggle.WithVersion(f.version))
	}
	if f.id != "" {
		options = append(options, wiggle.WithULID(f.id))
	}
	if cmd.Flags().Changed("priority") {
		if f.priority < 0 || f.priority > 9 {
			return nil, shell.Usage(cmd, fmt.Errorf("--priority %d: use 0 (lowest) to 9", f.priority))
		}
		options = append(options, wiggle.WithPriority(f.priority))
	}
	if f.delay < 0 {
		return nil, shell.Usage(cmd, fmt.Errorf("--delay %v: must not be negative", f.delay))
	}
	if f.delay > 0 {
		options = append(options, wiggle.WithDelay(f.delay))
	}
	return options, nil
}

// readInput reads the value of --input. That it is JSON is checked here, where the mistake is.
func (p *Program) readInput(cmd *cobra.Command, input string) (any, error) {
	text, from := []byte(input), "--input"
	var err error
	switch {
	case input == "":
		text = []byte("null")
	case input == "-":
		from = "standard input"
		text, err = io.ReadAll(p.In)
	case strings.HasPrefix(input, "@"):
		from = input[1:]
		text, err = os.ReadFile(input[1:])
	}
	if err != nil {
		return nil, shell.Failed("read the input: %v", err)
	}
	var value json.RawMessage
	if err := json.Unmarshal(text, &value); err != nil {
		return nil, shell.Usage(cmd, fmt.Errorf("the input in %s is not JSON: %w", from, err))
	}
	return value, nil
}

// waitFor waits for the end of an instance that was just started.
func (p *Program) waitFor(cmd *cobra.Command, c *wiggle.Client, run *wiggle.Run) error {
	if !p.json() {
		p.printf("%s\n", run.ID)
	}
	ctx, cancel := p.waitContext(cmd)
	defer cancel()
	inst, err := c.Wait(ctx, run.ID)
	if err != nil {
		return err
	}
	if p.json() {
		document := toInstanceJSON(inst)
		if err := p.printJSON(startedJSON{ID: run.ID, Version: run.Version, Created: run.Created, Instance: &document}); err != nil {
			return err
		}
	} else {
		p.printf("%s in %s\n%s\n", inst.State, p.took(inst), payloadText(inst.Context()))
	}
	if inst.State == wiggle.Completed {
		return nil
	}
	return &shell.Failure{
		Exit: shell.ExitNotWell, Kind: "instance_" + strings.ToLower(inst.State.String()),
		Message: fmt.Sprintf("instance %s ended %s: %s", inst.ID, inst.State, inst.Failure),
		Hint:    "see wiggle get " + inst.ID + " --history",
	}
}
