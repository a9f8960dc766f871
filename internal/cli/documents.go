package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
)

//go:generate go test . -run ^TestDocuments$ -update

// commands lists the commands below root, without those that cobra adds.
func commands(root *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, c := range root.Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		all = append(all, c)
		all = append(all, commands(c)...)
	}
	return all
}

// CommandsPage is docs/cli.md.
func CommandsPage() string {
	root := newRoot(&Program{})
	var text strings.Builder
	text.WriteString("# Command line\n\n<!-- Generated from the code by: go generate ./internal/cli -->\n\n" + root.Long + "\n\n" +
		"Completion for the shell comes from `wiggle completion --help`.\n\n## Flags of every command\n\n" +
		fence(root.PersistentFlags().FlagUsages()) + "\n")
	for _, c := range commands(root) {
		if !c.Runnable() || shell.IsFamily(c) {
			if c.Name() == "exit-codes" {
				fmt.Fprintf(&text, "\n## %s\n\n%s\n", c.Short, fence(c.Long))
			}
			continue
		}
		fmt.Fprintf(&text, "\n## %s\n\n%s\n", c.CommandPath(), fence(c.UseLine()))
		if c.Long != "" {
			text.WriteString("\n" + c.Long + "\n")
		} else {
			text.WriteString("\n" + c.Short + ".\n")
		}
		if c.Example != "" {
			text.WriteString("\n" + fence(c.Example) + "\n")
		}
		if flags := c.LocalFlags().FlagUsages(); flags != "" {
			text.WriteString("\n" + fence(flags) + "\n")
		}
	}
	return text.String()
}

func fence(text string) string { return "```\n" + strings.Trim(text, "\n") + "\n```" }
