package app

import (
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/router"
)

// Settings are those of a process with every service in it, read from its environment.
type Settings struct {
	// Process is what all processes have.
	Process *process.Process
	Services
}

// Load reads the settings of a process with every service in it. Its error is a *process.ConfigError.
func Load(environ []string) (*Settings, error) {
	s := &Settings{}
	var err error
	s.Process, err = process.Load(process.Spec{
		Name: "wiggle", Port: process.Port{Setting: router.SettingAddr, Addr: &s.Router.Addr, Public: true},
		Declare: s.declareServices, Check: s.check,
	}, environ)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Settings) declareServices(r *settings.Registry) {
	s.Router.Declare(r)
	s.Instances.Declare(r)
	s.Leader.Declare(r)
	s.Search.Declare(r)
	s.Auth.Declare(r)
}

// check says what is wrong with the settings of all services. What a service needs to know of the others it is told here.
func (s *Settings) check(t *topology.Topology) []process.Problem {
	found := append(s.Instances.Check(t), s.Auth.Check(t)...)
	if s.searches(t) {
		s.Search.RouterURLs = []string{"http://" + memoryRouter}
		found = append(found, s.Search.Check(t)...)
	}
	return found
}

// MigrateSettings are what `wiggle migrate` reads from its environment.
type MigrateSettings struct {
	// Topology is the cluster's.
	Topology *topology.Topology
	// Verify is whether the environment has services apply nothing by themselves.
	Verify bool
}

// LoadMigrate reads what `wiggle migrate` needs. Its error is a *process.ConfigError.
func LoadMigrate(environ []string) (MigrateSettings, error) {
	var cfg instances.Config
	p, err := process.Load(process.Spec{Name: "wiggle-migrate", Declare: cfg.Declare}, environ)
	if err != nil {
		return MigrateSettings{}, err
	}
	return MigrateSettings{Topology: p.Topology, Verify: cfg.SchemaVerify}, nil
}

// Table describes every setting of every process, for the documentation.
func Table() []settings.Row {
	r := settings.NewRegistry()
	s := &Settings{Process: &process.Process{}}
	s.declareServices(r)
	s.Process.Declare(r)
	r.Section("command line")
	r.External("WIGGLE_API_KEY", "API key that commands, and programs with the Go SDK, show to the server.")
	r.External("WIGGLE_API_KEY_FILE", "File with that key; it is read again when it changes. Only one of the two may be set.")
	r.External("WIGGLE_SERVER", "URL of the router that commands talk to (http://127.0.0.1:8420).")
	r.Section("dev")
	r.External("WIGGLE_POSTGRES_BIN", "Directory of the PostgreSQL programs that wiggle dev runs.")
	return r.Table()
}
