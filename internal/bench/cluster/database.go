package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/procfs"
	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

const (
	poolSize    = 16
	maxSessions = 100 // of PostgreSQL, beyond what the instances processes take

	// largeMemory is from where PostgreSQL is given largeBuffers.
	largeMemory  = 3 << 30
	largeBuffers = "512MB"
)

// makeDir makes the directory for data and logs. Not in /tmp, which may be memory, where a flush costs nothing; and
// where the account of PostgreSQL can enter.
func (c *Cluster) makeDir() error {
	if c.cfg.DataDir != "" {
		c.Dir = c.cfg.DataDir
		return os.MkdirAll(c.Dir, 0o755) //nolint:gosec // PostgreSQL's account enters; its data is 0700
	}
	parent := "/var/tmp"
	if _, err := os.Stat(parent); err != nil {
		parent = os.TempDir()
	}
	removeStale(parent)
	dir, err := os.MkdirTemp(parent, dirPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return err
	}
	c.Dir, c.temporary = dir, true
	return os.Chmod(dir, 0o755) //nolint:gosec // as above
}

// dirPrefix starts the names of directories; the process id of the owner follows.
const dirPrefix = "wiggle-bench-"

// removeStale removes directories of runs that were killed.
func removeStale(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*")) // only a malformed pattern fails
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		owner, err := strconv.Atoi(pid)
		if err == nil && errors.Is(syscall.Kill(owner, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
}

func databaseName(shard int) string { return fmt.Sprintf("wiggle_s%d", shard) }

// startDatabase starts PostgreSQL with a database for each shard and describes them.
func (c *Cluster) startDatabase(ctx context.Context) error {
	installation, err := devstack.Provide(ctx, devstack.ProvideOptions{Progress: c.cfg.Progress})
	if err != nil {
		return err
	}
	cfg := devstack.ServerConfig{
		Installation: installation, Dir: filepath.Join(c.Dir, "postgres"), TCP: true,
		MaxConnections: maxSessions + poolSize*c.cfg.Shards*c.cfg.Instances,
		StatStatements: c.cfg.StatStatements,
		Settings:       map[string]string{"max_wal_size": "4GB"},
	}
	if c.cfg.Throwaway {
		cfg.Profile = devstack.Throwaway
	}
	if procfs.ThisMachine().MemoryBytes >= largeMemory && !c.cfg.Throwaway {
		cfg.SharedBuffers = largeBuffers
	}
	maps.Copy(cfg.Settings, c.cfg.Postgres)
	if c.server, err = devstack.StartServer(ctx, cfg); err != nil {
		return err
	}
	c.AdminURL = c.server.TCPURL("postgres")
	document := topology.Document{Generations: []topology.DocumentGeneration{{
		ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{},
	}}}
	document.Defaults.Pool = poolSize
	for shard := range c.cfg.Shards {
		if err := c.server.CreateDatabase(ctx, databaseName(shard)); err != nil {
			return err
		}
		roles := topology.Roles{topology.RoleInstances}
		if shard == 0 {
			roles = append(roles, topology.RoleHome, topology.RoleAuth)
		}
		u := c.server.TCPURL(databaseName(shard))
		document.Generations[0].Weights[shard] = 1
		document.Shards = append(document.Shards, topology.DocumentShard{
			ID: shard, State: topology.StateActive, Roles: roles,
			Primary: &topology.DocumentMember{URL: topology.NewCredential(u)},
		})
		c.databaseURLs = append(c.databaseURLs, u)
	}
	if c.cfg.with(WithSearch) {
		member, err := c.searchMember(ctx)
		if err != nil {
			return err
		}
		document.Shards = append(document.Shards, member)
	}
	text, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("write the topology: %w", err)
	}
	c.topology = string(text)
	return nil
}
