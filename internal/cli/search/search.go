// Package search is the family of commands `wiggle search`: finding instances by what their contexts say, and looking after the
// index that they are found by.
package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// program is the shell with what these commands print by.
type program struct{ *shell.Shell }

func (p *program) printf(format string, args ...any) { _, _ = fmt.Fprintf(p.Out(), format, args...) }

// searchFlags are those of search and its facets.
type searchFlags struct {
	shell.FilterFlags

	endedSince, endedUntil string
	key                    string
	where                  []string
}

func (f *searchFlags) declare(cmd *cobra.Command) {
	f.Add(cmd)
	flags := cmd.Flags()
	flags.Lookup("workflow").Usage = "only those of this workflow; more follow with commas"
	flags.StringVar(&f.endedSince, "ended-since", "", "only those that ended from this `time` on")
	flags.StringVar(&f.endedUntil, "ended-until", "", "only those that ended before this `time`")
	flags.StringVar(&f.key, "key", "", "only those with this key")
	flags.StringArrayVar(&f.where, "where", nil, "only those whose context meets this `condition`: /customer/city=Paris, /total=10,"+
		" /total>=10, /total<=20, /paid=true; a number as text in quotes")
}

// search reads the flags as a filter.
func (f *searchFlags) search(p *program, cmd *cobra.Command) (wiggle.SearchFilter, []wiggle.ListOption, error) {
	simple, options, err := f.Filter(p.Shell, cmd)
	if err != nil {
		return wiggle.SearchFilter{}, nil, err
	}
	out := wiggle.SearchFilter{States: simple.States, CreatedFrom: simple.CreatedFrom, CreatedBefore: simple.CreatedBefore, Key: f.key}
	for name := range strings.SplitSeq(simple.Workflow, ",") {
		if name = strings.TrimSpace(name); name != "" {
			out.Workflows = append(out.Workflows, name)
		}
	}
	if out.EndedFrom, err = p.Instant(f.endedSince); err != nil {
		return out, nil, shell.Usage(cmd, fmt.Errorf("--ended-since: %w", err))
	}
	if out.EndedBefore, err = p.Instant(f.endedUntil); err != nil {
		return out, nil, shell.Usage(cmd, fmt.Errorf("--ended-until: %w", err))
	}
	for _, text := range f.where {
		condition, err := parseCondition(text)
		if err != nil {
			return out, nil, shell.Usage(cmd, fmt.Errorf("--where %q: %w", text, err))
		}
		out.Where = append(out.Where, condition)
	}
	return out, options, nil
}

// parseCondition reads /path=value, /path>=number or /path<=number.
func parseCondition(text string) (wiggle.Condition, error) {
	if !strings.HasPrefix(text, "/") {
		return wiggle.Condition{}, errors.New("begin with where the value is, such as /customer/city")
	}
	at := strings.IndexAny(text, "<>=")
	if at < 0 {
		return wiggle.Condition{}, errors.New("say what the value has to be: /path=value, /path>=10 or /path<=20")
	}
	path, rest := text[:at], text[at:]
	for _, op := range []string{">=", "<="} {
		value, ok := strings.CutPrefix(rest, op)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return wiggle.Condition{}, fmt.Errorf("%q is no number", value)
		}
		if op == ">=" {
			return wiggle.WhereRange(path, &n, nil), nil
		}
		return wiggle.WhereRange(path, nil, &n), nil
	}
	value, ok := strings.CutPrefix(rest, "=")
	if !ok {
		return wiggle.Condition{}, errors.New("use =, >= or <=")
	}
	var scalar any
	if json.Unmarshal([]byte(value), &scalar) == nil {
		switch v := scalar.(type) {
		case float64:
			return wiggle.WhereNumber(path, v), nil
		case bool:
			return wiggle.WhereBool(path, v), nil
		case string:
			return wiggle.WhereText(path, v), nil
		}
	}
	return wiggle.WhereText(path, value), nil
}

const defaultHits = 20

// New makes the commands.
func New(sh *shell.Shell) *cobra.Command {
	p := &program{sh}
	var f searchFlags
	limit, all := defaultHits, false
	cmd := &cobra.Command{
		Use:   "search [WORDS...]",
		Short: "Find instances by what their contexts say",
		Long: `Find instances by the words of their contexts, and of the failures they ended with: the best
match first, of equal ones the newest. Words are as search engines take them: words, "phrases"
in quotes, or, -without. Without words: everything that the flags let through, newest first.

The index follows the instances by a second or so.`,
		Example: `  wiggle search paris refund --state failed
  wiggle search '"out of stock" or backorder -test' --workflow order-fulfilment --since 24h
  wiggle search --where /customer/city=Paris --where '/total>=100' -o json | jq -r '.hits[].id'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return shell.Usage(cmd, fmt.Errorf("--limit %d: use 1 or more, or --all", limit))
			}
			if all {
				limit = 0
			}
			return p.search(cmd, strings.Join(args, " "), f, limit)
		},
	}
	f.declare(cmd)
	cmd.Flags().IntVar(&limit, "limit", limit, "how many to show at most")
	cmd.Flags().BoolVar(&all, "all", false, "show all there are")
	cmd.AddCommand(newFacets(p), newReindex(p), newVerify(p), newIndexStatus(p))
	return cmd
}

// searchJSON is what `wiggle search -o json` prints.
type searchJSON struct {
	Hits []hitJSON `json:"hits"`
	// More is true if the limit left some out.
	More          bool               `json:"more"`
	MissingShards []shell.ShardError `json:"missing_shards,omitempty"`
}

// hitJSON is one hit. Found words stand between U+E000 and U+E001 in the snippets.
type hitJSON struct {
	ID        string     `json:"id"`
	Namespace string     `json:"namespace"`
	Workflow  string     `json:"workflow"`
	Version   int        `json:"version"`
	State     string     `json:"state"`
	Key       string     `json:"key,omitempty"`
	Priority  int        `json:"priority"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	Rank      float64    `json:"rank"`
	Snippets  []string   `json:"snippets,omitempty"`
	Failure   string     `json:"failure,omitempty"`
}

const maxHitsPage = 100

func (p *program) search(cmd *cobra.Command, words string, f searchFlags, limit int) error {
	filter, options, err := f.search(p, cmd)
	if err != nil {
		return err
	}
	page := maxHitsPage
	if limit > 0 {
		page = min(limit+1, maxHitsPage)
	}
	options = append(options, wiggle.PageSize(page))
	return p.WithClient(cmd, func(ctx context.Context, c *wiggle.Client) error {
		var found []*wiggle.Hit
		var missing *wiggle.PartialError
		more := false
		for hit, err := range c.Search(ctx, words, filter, options...) {
			if err != nil && !errors.As(err, &missing) {
				return err
			}
			if hit == nil {
				continue
			}
			if limit > 0 && len(found) == limit {
				more = true
				break
			}
			found = append(found, hit)
		}
		return p.printHits(found, more, missing)
	})
}

func (p *program) printHits(found []*wiggle.Hit, more bool, missing *wiggle.PartialError) error {
	if p.JSON() {
		document := searchJSON{Hits: []hitJSON{}, More: more, MissingShards: shell.MissingShards(missing)}
		for _, h := range found {
			document.Hits = append(document.Hits, hitJSON{
				h.InstanceID, h.Namespace, h.Workflow, h.Version, h.State.String(), h.Key, h.Priority,
				shell.TimeJSON(h.CreatedAt), shell.TimeJSON(h.EndedAt), h.Rank, h.Snippets, h.Failure,
			})
		}
		return p.PrintJSON(document)
	}
	if len(found) == 0 {
		p.printf("no instances\n")
	}
	for _, h := range found {
		p.printf("%s  %s  %s  %s\n", h.InstanceID, h.Workflow, h.State, p.When(h.CreatedAt))
		for _, s := range h.Snippets {
			p.printf("    %s\n", p.highlight(s))
		}
		if h.Failure != "" {
			p.printf("    %s\n", strings.ReplaceAll(h.Failure, "\n", " "))
		}
	}
	if more {
		_, _ = fmt.Fprintf(p.Err(), "the first %d; there are more: use --limit or --all\n", len(found))
	}
	shell.WarnMissing(p.Err(), missing)
	return nil
}

// highlight makes found words stand out: by bold type on a terminal, else by asterisks.
func (p *program) highlight(snippet string) string {
	start, stop := "*", "*"
	if p.Colours() {
		start, stop = "\x1b[1m", "\x1b[0m"
	}
	return strings.NewReplacer(wiggle.MarkStart, start, wiggle.MarkStop, stop).Replace(snippet)
}

func newFacets(p *program) *cobra.Command {
	var f searchFlags
	cmd := &cobra.Command{
		Use:     "facets [WORDS...]",
		Short:   "Count what a search finds, by workflow and by state",
		Example: `  wiggle search facets refund --since 24h`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.facets(cmd, strings.Join(args, " "), f)
		},
	}
	f.declare(cmd)
	return cmd
}
