package cluster

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/wiggle-run/wiggle/internal/devstack"
)

const (
	// restartTime bounds how long a killed server's children may keep its directory.
	restartTime  = 30 * time.Second
	restartPause = 50 * time.Millisecond
	// databaseName is the database that every server has from the start.
	databaseName = "postgres"
)

// Database is the PostgreSQL server of one shard.
type Database struct {
	// Name is for people.
	Name string

	cfg    devstack.ServerConfig
	server *devstack.Server // nil while it is down
}

func newDatabase(name, dir string, port int) *Database {
	return &Database{Name: name, cfg: devstack.ServerConfig{
		Dir: dir, Profile: devstack.Durable, TCP: true, Port: port, MaxConnections: 60, SharedBuffers: "32MB",
	}}
}

// URL is its address, which stays the same.
func (d *Database) URL() string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", devstack.Superuser, d.cfg.Port, databaseName)
}

// LogFile is where its output is.
func (d *Database) LogFile() string { return d.cfg.Dir + "/postgres.log" }

// Start starts the server and waits until it takes connections. Right after a kill
// it tries for a while: children of the old postmaster linger.
func (d *Database) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restartTime)
	defer cancel()
	for {
		s, err := devstack.StartServer(ctx, d.cfg)
		if err == nil {
			d.server = s
			d.cfg.Installation = s.Config().Installation
			return nil
		}
		if !Pause(ctx, restartPause) {
			return fmt.Errorf("start %s: %w", d.Name, err)
		}
	}
}

// Kill kills the postmaster (SIGKILL) and nothing else, as the kernel would when
// memory runs out. Its children notice by themselves.
func (d *Database) Kill() error {
	s := d.server
	if s == nil {
		return nil
	}
	d.server = nil
	if err := syscall.Kill(s.PID(), syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s: %w", d.Name, err)
	}
	<-s.Exited()
	return s.Stop(context.Background()) // nothing is left to stop: gives the directory back
}

// Stop stops the server in order.
func (d *Database) Stop(ctx context.Context) error {
	s := d.server
	if s == nil {
		return nil
	}
	d.server = nil
	return s.Stop(ctx)
}
