package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/app"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

func newTopology(p *Program) *cobra.Command {
	cmd := shell.Family(&cobra.Command{Use: "topology", Short: "Check the description of a cluster's databases"})
	online, facts := false, ""
	check := &cobra.Command{
		Use:   "check FILE|-",
		Short: "Say everything that is wrong with a topology, or what it describes",
		Long: `Check a topology document as a service does at its start, without starting one: every
problem is named, one a line, by shard or generation. ${NAME} is replaced from the environment.

With --online the databases are also asked which shard and cluster they belong to, and home's
which shards the cluster has had. With --facts a file says it in their place, for checks where
the databases are out of reach:

  {"registry": [{"shardId": 0, "state": "active"}],
   "claims": {"0": {"shardId": 0, "clusterId": "k3..."}}}`,
		Example: `  wiggle topology check topology.json
  wiggle topology check - --online < topology.json`,
		Args: shell.Args(1, 1, "FILE, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error { return p.checkTopology(cmd, args[0], online, facts) },
	}
	check.Flags().BoolVar(&online, "online", false, "also ask the databases what they are and which shards there were")
	check.Flags().StringVar(&facts, "facts", "", "JSON `FILE` with what the registry and the databases say")
	check.MarkFlagsMutuallyExclusive("online", "facts")
	cmd.AddCommand(check)
	return cmd
}

func readAll(r io.Reader) ([]byte, error) { return io.ReadAll(r) }

// topologyJSON is what `wiggle topology check -o json` prints.
type topologyJSON struct {
	OK          bool                `json:"ok"`
	Problems    []problemJSON       `json:"problems"`
	Generations []generationJSON    `json:"generations,omitempty"`
	Shards      []topologyShardJSON `json:"shards,omitempty"`
	Connections int                 `json:"connections,omitempty"`
	Unreachable []shell.ShardError  `json:"unreachable,omitempty"`
}

type generationJSON struct {
	ID         int                `json:"id"`
	ActiveFrom time.Time          `json:"active_from"`
	Weights    map[string]float64 `json:"weights"`
}

type topologyShardJSON struct {
	ID          int      `json:"id"`
	State       string   `json:"state"`
	Roles       []string `json:"roles"`
	Primary     string   `json:"primary"`
	Replicas    int      `json:"replicas"`
	Connections int      `json:"connections"`
	// Cluster is what the database says with --online, empty if nobody has claimed it.
	Cluster string `json:"cluster,omitempty"`
}

// checked is what was found out about a topology.
type checked struct {
	topology    *topology.Topology
	problems    *topology.Problems
	online      bool
	claims      map[int]topology.Claim
	unreachable []app.ShardFailure
}

func (p *Program) checkTopology(cmd *cobra.Command, file string, online bool, factsFile string) error {
	text, err := p.readFile(file)
	if err != nil {
		return shell.Failed("read the topology: %v", err)
	}
	c := checked{online: online}
	c.topology, err = topology.Parse(text, p.getenv)
	if err != nil && !errors.As(err, &c.problems) {
		return err
	}
	if err := p.checkFacts(cmd, &c, factsFile); err != nil {
		return err
	}
	if p.json() {
		if err := p.printJSON(toTopologyJSON(c)); err != nil {
			return err
		}
	} else {
		p.printTopology(c)
	}
	switch {
	case c.problems != nil:
		return &shell.Failure{
			Exit: shell.ExitFailure, Kind: "topology", Told: p.json(),
			Message: fmt.Sprintf("%s is refused: %s", nameOf(file), plural(len(c.problems.List), "problem")),
		}
	case len(c.unreachable) > 0:
		return &shell.Failure{
			Exit: shell.ExitUnavailable, Kind: "unreachable", Told: p.json(),
			Message: plural(len(c.unreachable), "database") + " did not answer",
		}
	}
	return nil
}

// checkFacts makes the checks that need more than the document, if that was right.
func (p *Program) checkFacts(cmd *cobra.Command, c *checked, factsFile string) error {
	if c.problems != nil {
		return nil
	}
	var known app.Facts
	switch {
	case factsFile != "":
		text, err := p.readFile(factsFile)
		if err == nil {
			err = json.Unmarshal(text, &known) //nolint:musttag // shardId and ShardID are the same to it
		}
		if err != nil {
			return shell.Failed("read the facts: %v", err)
		}
	case c.online:
		ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
		defer cancel()
		known, c.unreachable = app.AskDatabases(ctx, c.topology)
	}
	c.claims = known.Claims
	c.problems = topology.Check(c.topology, known.Registry, known.Claims)
	return nil
}

func nameOf(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func toTopologyJSON(c checked) topologyJSON {
	t, out := c.topology, topologyJSON{OK: c.problems == nil, Problems: []problemJSON{}}
	if c.problems != nil {
		for _, problem := range c.problems.List {
			out.Problems = append(out.Problems, problemJSON{problem.Where, problem.Message})
		}
	}
	if len(c.unreachable) > 0 {
		out.Unreachable = failuresJSON(c.unreachable)
	}
	if t == nil {
		return out
	}
	for _, g := range t.Generations {
		weights := map[string]float64{}
		for shard, weight := range g.Weights {
			weights[strconv.Itoa(shard)] = weight
		}
		out.Generations = append(out.Generations, generationJSON{g.ID, g.ActiveFrom.UTC(), weights})
	}
	opened := connectionsByShard(t)
	for _, s := range t.Shards {
		roles := make([]string, len(s.Roles))
		for i, role := range s.Roles {
			roles[i] = string(role)
		}
		out.Shards = append(out.Shards, topologyShardJSON{
			s.ID, string(s.State), roles, s.Primary.URL, len(s.Replicas), opened[s.ID].Total(), c.claims[s.ID].ClusterID,
		})
	}
	out.Connections = t.Connections().Total()
	return out
}

func connectionsByShard(t *topology.Topology) map[int]topology.ShardConnections {
	out := map[int]topology.ShardConnections{}
	for _, c := range t.Connections().Shards {
		out[c.Shard] = c
	}
	return out
}

func (p *Program) printTopology(c checked) {
	if c.problems != nil {
		for _, problem := range c.problems.List {
			p.printf("%s\n", problem)
		}
		return
	}
	heads := []string{"SHARD", "STATE", "ROLES", "PRIMARY", "REPLICAS", "CONNECTIONS"}
	t := c.topology
	if c.online {
		heads = append(heads, "CLUSTER")
	}
	table := shell.NewTable(p.Out, heads...)
	opened := connectionsByShard(t)
	for _, s := range t.Shards {
		cells := []string{
			strconv.Itoa(s.ID), string(s.State), s.Roles.String(), orDash(s.Primary.URL), strconv.Itoa(len(s.Replicas)),
			strconv.Itoa(opened[s.ID].Total()),
		}
		if c.online {
			cells = append(cells, c.clusterText(s.ID))
		}
		table.Row(cells...)
	}
	table.Flush()
	p.printf("\n")
	table = shell.NewTable(p.Out, "GENERATION", "FROM", "WEIGHTS")
	for _, g := range t.Generations {
		table.Row(strconv.Itoa(g.ID), g.ActiveFrom.UTC().Format(time.RFC3339), weightsText(g.Weights))
	}
	table.Flush()
	p.printf("\n")
	for _, f := range c.unreachable {
		_, _ = fmt.Fprintf(p.Err, "shard %d: %s\n", f.Shard, f.Detail())
	}
	if len(c.unreachable) == 0 {
		p.printf("ok: ")
	}
	p.printf("a process that serves every shard opens up to %d connections\n", t.Connections().Total())
}

func (c checked) clusterText(shard int) string {
	for _, f := range c.unreachable {
		if f.Shard == shard {
			return "did not answer"
		}
	}
	if claim, ok := c.claims[shard]; ok {
		return claim.ClusterID
	}
	return "not claimed yet"
}

// weightsText shows each shard's share of new instances.
func weightsText(weights map[int]float64) string {
	sum := 0.0
	for _, weight := range weights {
		sum += weight
	}
	var parts []string
	for _, shard := range slices.Sorted(maps.Keys(weights)) {
		parts = append(parts, fmt.Sprintf("%d: %.4g (%.1f %%)", shard, weights[shard], 100*weights[shard]/sum))
	}
	return strings.Join(parts, ", ")
}
