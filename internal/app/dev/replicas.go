package dev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/wiggle-run/wiggle/internal/devstack"
)

// MaxReplicas bounds how many copies of the data a developer's machine holds.
const MaxReplicas = 2

// replicaDir is where a replica keeps its copy.
func (s *Stack) replicaDir(i int) string {
	return filepath.Join(s.DataDir, fmt.Sprintf("replica-%d", i))
}

// startReplicas starts the replicas. Each is a copy that is made anew: nothing has to be remembered of one that stopped when the
// server went on without it, and one that is not wanted any more leaves nothing.
func (s *Stack) startReplicas(ctx context.Context) error {
	if err := s.dropReplicas(); err != nil {
		return err
	}
	for i := range s.opts.Replicas {
		replica, err := devstack.StartReplica(ctx, s.server, devstack.ServerConfig{Dir: s.replicaDir(i), TCP: true})
		if err != nil {
			return fmt.Errorf("replica %d: %w", i, s.explain(err))
		}
		s.replicas = append(s.replicas, replica)
	}
	return nil
}

// dropReplicas deletes the copies of earlier runs.
func (s *Stack) dropReplicas() error {
	for i := range MaxReplicas {
		dir := s.replicaDir(i)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := devstack.Reset(dir); err != nil {
			return s.explain(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("replica %d: %w", i, err)
		}
	}
	return nil
}
