package process

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// Spec says what a process is.
type Spec struct {
	// Name is the process's in logs and telemetry, such as "wiggle-router".
	Name string
	// Port is where it listens. The zero value is that of a command that does not.
	Port Port
	// Declare declares the settings of the services in it.
	Declare func(r *settings.Registry)
	// Check, if set, says what is wrong with their settings that one setting alone does not show. It runs whatever else is
	// wrong; t is nil if the topology is.
	Check func(t *topology.Topology) []Problem
}

// Process is a process whose settings are right. Make it with Load.
type Process struct {
	// Name is the process's in logs and telemetry.
	Name string
	// Topology is the cluster's as it was read.
	Topology *topology.Topology
	// LogFormat is json or text, LogLevel the least level that is logged.
	LogFormat string
	LogLevel  slog.Level
	// MetricsAddr is where Prometheus finds metrics; empty for the service's own port.
	MetricsAddr string
	// PprofAddr is where profiles are offered; empty for nowhere.
	PprofAddr string
	// Values are all settings, for the log.
	Values settings.Values

	port      Port
	transport transport
	environ   []string
	levelName string
	listeners []net.Listener
}

// Problem is one thing that is wrong with the configuration of a process.
type Problem struct {
	// Where is a setting, or a part of the topology such as "shard 3". Empty for what concerns several.
	Where string
	// Message says what is wrong, and what would be right. It holds no secret.
	Message string
}

// String is the problem on a line.
func (p Problem) String() string {
	if p.Where == "" {
		return p.Message
	}
	return p.Where + ": " + p.Message
}

// ConfigError is everything that is wrong with the configuration of a process.
type ConfigError struct {
	// Problems is never empty.
	Problems []Problem
}

// Error lists the problems, a line each.
func (e *ConfigError) Error() string {
	var text strings.Builder
	text.WriteString("the configuration is not right:")
	for _, p := range e.Problems {
		text.WriteString("\n  " + p.String())
	}
	return text.String()
}

// Load reads the settings of a process from an environment as os.Environ returns it. Its error is a *ConfigError that
// names every problem of the settings and the topology, those of the removed coordinator first.
func Load(spec Spec, environ []string) (*Process, error) {
	p := &Process{Name: spec.Name, port: spec.Port, environ: environ}
	r := settings.NewRegistry()
	spec.Declare(r)
	p.Declare(r)
	allowForeign(r, environ)

	var found []Problem
	removed := map[string]bool{}
	if problems := topology.RemovedSettings(environ); problems != nil {
		for _, problem := range problems.List {
			removed[problem.Where] = true
			r.Allow(problem.Where)
			found = append(found, Problem{problem.Where, problem.Message})
		}
	}
	var err error
	p.Values, err = r.Load(environ)
	if e, ok := errors.AsType[*settings.Error](err); ok {
		for _, problem := range e.Problems {
			found = append(found, Problem{problem.Name, problem.Message})
		}
	}
	p.Topology, err = p.readTopology()
	if err != nil {
		p.Topology = nil
		for _, problem := range topologyProblems(err) {
			if !removed[problem.Where] { // told above
				found = append(found, problem)
			}
		}
	}
	if err := p.LogLevel.UnmarshalText([]byte(p.levelName)); err != nil {
		p.LogLevel = slog.LevelInfo // told by the registry
	}
	found = append(found, p.transport.check(spec.Port)...)
	if spec.Check != nil {
		found = append(found, spec.Check(p.Topology)...)
	}
	if len(found) > 0 {
		return nil, &ConfigError{Problems: found}
	}
	return p, nil
}

func topologyProblems(err error) []Problem {
	e, ok := errors.AsType[*topology.Problems](err)
	if !ok {
		return []Problem{{topology.EnvTopology, err.Error()}}
	}
	found := make([]Problem, 0, len(e.List))
	for _, problem := range e.List {
		found = append(found, Problem{problem.Where, problem.Message})
	}
	return found
}

// readTopology reads the topology as it is now.
func (p *Process) readTopology() (*topology.Topology, error) {
	return topology.Load(Lookup(p.environ), os.ReadFile)
}

const settingMetricsAddr = "WIGGLE_METRICS_ADDR"

// Declare declares the settings that every process has. Load does so by itself; the documentation needs them too.
func (p *Process) Declare(r *settings.Registry) {
	r.Section("all")
	r.String(&p.LogFormat, "WIGGLE_LOG_FORMAT", "json", "How logs are written.", settings.OneOf("json", "text"))
	r.String(&p.levelName, "WIGGLE_LOG_LEVEL", "info", "The least level that is logged.",
		settings.OneOf("debug", "info", "warn", "error"))
	r.String(&p.MetricsAddr, settingMetricsAddr, "",
		"Address and port of a listener for Prometheus alone, at /metrics. Not set: the service's own port has /metrics.",
		settings.Example("127.0.0.1:9420"))
	r.String(&p.PprofAddr, settingPprofAddr, "",
		"Address and port, on the loopback interface, where Go's profiles are offered below /debug/pprof/. Not set: nowhere.",
		settings.Example("127.0.0.1:6060"))
	p.transport.declare(r)
	r.External(topology.EnvTopology,
		"The topology: the path of a JSON document, or the document itself. It may take other variables as ${NAME}.")
	for _, external := range []struct{ name, doc string }{
		{topology.EnvDatabaseURL, "Without a topology: the URL of the one database. Either this or the topology is required."},
		{topology.EnvReplicaURLs, "Without a topology: the URLs of the database's replicas, with commas or spaces between them."},
		{topology.EnvReplicaPoolSize, "Without a topology: connections that a process opens to each replica (16)."},
		{topology.EnvMaxReplicaLagMillis, "Without a topology: by how many milliseconds a replica may lag and still be read from (5000)."},
		{topology.EnvReplicaFallback, "Without a topology: what reads do when no replica is healthy, primary or fail (primary)."},
	} {
		r.External(external.name, external.doc)
		r.External(topology.OlderName(external.name), "")
	}
}

// documentName finds the names that a topology document takes from the environment.
var documentName = regexp.MustCompile(`\$\{(WIGGLE_\w+)\}`)

// allowForeign makes names known that are right though no service of this process reads them.
func allowForeign(r *settings.Registry, environ []string) {
	for _, name := range Names() {
		r.External(name.Name, "") // not Allow: a misspelt one is told what was meant
	}
	// Tests of the repository set these for the processes that they start.
	r.External("WIGGLE_TEST_*", "")
	r.External("WIGGLE_CRASH_*", "")

	document, _ := Lookup(environ)(topology.EnvTopology)
	document = strings.TrimSpace(document)
	if !strings.HasPrefix(document, "{") {
		text, err := os.ReadFile(document)
		if err != nil {
			return // loading the topology says what is wrong
		}
		document = string(text)
	}
	for _, match := range documentName.FindAllStringSubmatch(document, -1) {
		r.Allow(match[1])
	}
}

// Lookup reads an environment as os.Environ returns it. Of a name that is there several times the last counts.
func Lookup(environ []string) topology.Environment {
	return func(name string) (string, bool) {
		for _, entry := range slices.Backward(environ) {
			if key, value, ok := strings.Cut(entry, "="); ok && key == name {
				return value, true
			}
		}
		return "", false
	}
}
