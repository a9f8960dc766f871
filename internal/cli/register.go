package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/definitionfile"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func newRegister(p *Program) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "register -f FILE",
		Short: "Register a workflow from a YAML or JSON file",
		Long: `Register the definition of a workflow. Registering the same graph again changes nothing;
a different one gets the next version, unless the file declares one.`,
		Example: `  wiggle register -f order.yaml
  wiggle workflows order-fulfilment -o yaml | wiggle --server https://other register -f -`,
		Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return shell.Usage(cmd, errors.New("say which file: -f FILE, or -f - for standard input"))
			}
			return p.register(cmd, file)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "`FILE` with the definition, .yaml, .yml or .json; - for standard input")
	return cmd
}

// registeredJSON is what `wiggle register -o json` prints.
type registeredJSON struct {
	Workflow     string `json:"workflow"`
	Version      int    `json:"version"`
	Fingerprint  string `json:"fingerprint"`
	Created      bool   `json:"created"`
	ShardsBehind []int  `json:"shards_behind"`
}

func (p *Program) register(cmd *cobra.Command, file string) error {
	def, err := p.readDefinition(file)
	if err != nil {
		return err
	}
	return p.withClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		reg, err := c.Register(ctx, def)
		if err != nil {
			return err
		}
		if p.json() {
			behind := reg.ShardsBehind
			if behind == nil {
				behind = []int{}
			}
			return p.printJSON(registeredJSON{def.Name(), reg.Version, reg.Fingerprint, reg.Created, behind})
		}
		what := "unchanged"
		if reg.Created {
			what = "created"
		}
		p.printf("%s version %d %s\n", def.Name(), reg.Version, what)
		if len(reg.ShardsBehind) > 0 {
			p.printf("not yet on shards %s: each receives it before it serves a start\n", joinInts(reg.ShardsBehind))
		}
		return nil
	})
}

func (p *Program) readDefinition(file string) (*wiggle.Definition, error) {
	name := file
	var text []byte
	var err error
	if file == "-" {
		text, err = io.ReadAll(p.In)
		name = "standard input.yaml"
		if strings.HasPrefix(strings.TrimSpace(string(text)), "{") {
			name = "standard input.json"
		}
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, shell.Failed("read the definition: %v", err)
	}
	message, err := definitionfile.Parse(name, text)
	if err != nil {
		return nil, err
	}
	def, err := wiggle.FromProto(message)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return def, nil
}

func joinInts(list []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]")
}
