package devstack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// StartReplica starts a streaming replica of a running server: a copy of it if cfg.Dir has no data yet, else what is there.
// It serves reads once it has caught up with the moment of its start, and follows asynchronously; in pg_stat_replication
// of the primary it is called by the last element of cfg.Dir. Programs, profile and max_connections are the primary's.
// If the primary's data was reset, so must be the replica's.
func StartReplica(ctx context.Context, primary *Server, cfg ServerConfig) (*Server, error) {
	cfg.Installation, cfg.Profile, cfg.MaxConnections = primary.cfg.Installation, primary.cfg.Profile, primary.cfg.MaxConnections
	return newServer(ctx, cfg, primary)
}

// primaryConninfo is how the replica reaches its primary. It is given anew at each start, because the primary's port may
// have changed.
func (s *Server) primaryConninfo() string {
	return fmt.Sprintf("host=%s port=%s user=%s application_name=%s",
		s.primary.socketDir, strconv.Itoa(s.primary.port), Superuser, filepath.Base(s.cfg.Dir))
}

func (s *Server) standbySettings() map[string]string {
	return map[string]string{
		"primary_conninfo":             s.primaryConninfo(),
		"wal_receiver_status_interval": "1s",
		"wal_retrieve_retry_interval":  "500ms", // how soon it notices that the primary is back
	}
}

func (s *Server) baseBackup(data string) (program string, args []string) {
	args = []string{"--pgdata", data, "--dbname", s.primaryConninfo(), "--wal-method", "stream", "--checkpoint", "fast", "--no-password"}
	if s.cfg.Profile == Throwaway {
		args = append(args, "--no-sync")
	}
	return "pg_basebackup", args
}

// markStandby makes the next start one of a standby.
func (s *Server) markStandby() error {
	path := filepath.Join(dataDir(s.cfg.Dir), "standby.signal")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return s.as.own(path)
}
