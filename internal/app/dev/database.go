package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// stateFile says what the data directory holds.
const stateFile = "wiggle-dev.json"

// state is what the state file says.
type state struct {
	Shards int `json:"shards"`
}

// startDatabase brings PostgreSQL up with a database for each shard.
func (s *Stack) startDatabase(ctx context.Context) error {
	if s.opts.Reset {
		if err := s.reset(); err != nil {
			return err
		}
	}
	had, err := s.readState()
	if err != nil {
		return err
	}
	if had.Shards > s.opts.Shards {
		return fmt.Errorf("the data in %s has %d shards, and a shard that holds instances cannot be left out: "+
			"use --shards %d, another --data-dir, or --reset", s.DataDir, had.Shards, had.Shards)
	}
	installation, err := devstack.Provide(ctx, devstack.ProvideOptions{Progress: s.opts.Progress, PreferMajor: s.dataMajor()})
	if err != nil {
		return err
	}
	profile := devstack.Throwaway
	if s.opts.Durable {
		profile = devstack.Durable
	}
	s.server, err = devstack.StartServer(ctx, devstack.ServerConfig{
		Installation: installation, Dir: s.DataDir, Profile: profile, TCP: true, StatStatements: true,
	})
	if err != nil {
		return s.explain(err)
	}
	s.Postgres, s.DataDir, s.LogFile = installation, s.server.Dir(), s.server.LogFile()
	if err := s.createDatabases(ctx); err != nil {
		return err
	}
	if err := s.startReplicas(ctx); err != nil {
		return err
	}
	if err := s.describe(); err != nil {
		return err
	}
	s.offerStatistics(ctx)
	return s.writeState(state{Shards: s.opts.Shards})
}

// explain says in a developer's words who uses a data directory.
func (s *Stack) explain(err error) error {
	inUse, ok := errors.AsType[*devstack.InUseError](err)
	if !ok {
		return err
	}
	by := ""
	if inUse.PID > 0 {
		by = fmt.Sprintf(" (PostgreSQL is process %d)", inUse.PID)
	}
	return fmt.Errorf("data directory %s is in use by another wiggle dev%s: stop that, or choose another --data-dir", inUse.Dir, by)
}

func (s *Stack) reset() error {
	if err := devstack.Reset(s.DataDir); err != nil {
		return s.explain(err)
	}
	if err := os.RemoveAll(filepath.Join(s.DataDir, "nats")); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	if err := os.Remove(filepath.Join(s.DataDir, stateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reset: %w", err)
	}
	return nil
}

// dataMajor is the version of PostgreSQL that wrote the data, 0 if there is none.
func (s *Stack) dataMajor() int {
	text, err := os.ReadFile(filepath.Join(s.DataDir, "data", "PG_VERSION"))
	if err != nil {
		return 0
	}
	major := 0
	_, _ = fmt.Sscan(string(text), &major)
	return major
}

// searchShard holds the documents of the search index. Its number leaves room for instance shards, which may become more.
const searchShard = 100

// authShard is the number of the shard that holds the accounts.
const authShard = 200

// databaseName is a shard's database.
func databaseName(shard int) string {
	switch shard {
	case searchShard:
		return "wiggle_search"
	case authShard:
		return "wiggle_auth"
	}
	return fmt.Sprintf("wiggle_s%d", shard)
}

// createDatabases makes what is missing.
func (s *Stack) createDatabases(ctx context.Context) error {
	shards := []int{}
	for shard := range s.opts.Shards {
		shards = append(shards, shard)
	}
	for _, shard := range append(shards, searchShard, authShard) {
		name := databaseName(shard)
		if err := s.server.CreateDatabase(ctx, name); err != nil {
			return err
		}
		s.Databases = append(s.Databases, Database{Shard: shard, Name: name, URL: s.server.TCPURL(name)})
	}
	return nil
}

// describe makes the topology: home and auth are on shard 0, search has a shard of its own, and every replica of the
// server is one of each instance shard.
func (s *Stack) describe() error {
	document := topology.Document{Generations: []topology.DocumentGeneration{{
		ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{},
	}}}
	document.Defaults.Pool, document.Defaults.ReplicaPool = poolSize, poolSize
	for i := range s.Databases {
		d := &s.Databases[i]
		roles := topology.Roles{topology.RoleInstances}
		switch d.Shard {
		case 0:
			roles = append(roles, topology.RoleHome)
		case searchShard:
			roles = topology.Roles{topology.RoleSearch}
		case authShard:
			roles = topology.Roles{topology.RoleAuth}
		}
		shard := topology.DocumentShard{
			ID: d.Shard, State: topology.StateActive, Roles: roles,
			Primary: &topology.DocumentMember{URL: topology.NewCredential(d.URL)},
		}
		if roles.Has(topology.RoleInstances) {
			document.Generations[0].Weights[d.Shard] = 1
			for _, replica := range s.replicas {
				url := replica.TCPURL(d.Name)
				shard.Replicas = append(shard.Replicas, topology.DocumentMember{URL: topology.NewCredential(url)})
				d.Replicas = append(d.Replicas, url)
			}
		}
		d.Roles = roles
		document.Shards = append(document.Shards, shard)
	}
	text, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("write the topology: %w", err)
	}
	s.topology, err = topology.Parse(text, func(string) (string, bool) { return "", false })
	return err
}

// offerStatistics makes pg_stat_statements readable, in the database postgres. An installation may lack it.
func (s *Stack) offerStatistics(ctx context.Context) {
	pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "dev", URL: s.server.URL("postgres"), MaxConns: 1})
	if err != nil {
		return
	}
	defer pool.Close()
	_, _ = pool.Exec(ctx, "create extension if not exists pg_stat_statements")
}

func (s *Stack) readState() (state, error) {
	text, err := os.ReadFile(filepath.Join(s.DataDir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, nil
	}
	var had state
	if err == nil {
		err = json.Unmarshal(text, &had)
	}
	if err != nil {
		return had, fmt.Errorf("data directory %s: %w (--reset starts over)", s.DataDir, err)
	}
	return had, nil
}

// writeState replaces the file at once: a crash leaves the old one or the new one.
func (s *Stack) writeState(now state) error {
	text, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("data directory %s: %w", s.DataDir, err)
	}
	path := filepath.Join(s.DataDir, stateFile)
	if err = os.WriteFile(path+".new", append(text, '\n'), 0o644); err == nil { //nolint:gosec // no secret
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("data directory %s: %w", s.DataDir, err)
	}
	return nil
}

// watchDatabase runs as long as PostgreSQL does, and stops it in the end.
func (s *Stack) watchDatabase(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return s.stopDatabase(lifecycle.DrainContext(ctx))
	case <-s.server.Exited():
		return errors.Join(s.databaseEnded(), s.stopDatabase(ctx))
	}
}

func (s *Stack) databaseEnded() error {
	return fmt.Errorf("PostgreSQL has ended by itself; the end of %s says why", s.LogFile)
}

// stopDatabase leaves no process behind, however little time is left. Replicas go first: they are told the rest of the log
// for nothing otherwise.
func (s *Stack) stopDatabase(ctx context.Context) error {
	var errs []error
	for _, replica := range s.replicas {
		errs = append(errs, replica.Stop(context.WithoutCancel(ctx)))
	}
	if s.server != nil {
		errs = append(errs, s.server.Stop(context.WithoutCancel(ctx)))
	}
	return errors.Join(errs...)
}
