package devstack

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSConfig says what NATS server to run.
type NATSConfig struct {
	// Dir holds the stream's files. Created if missing. Required.
	Dir string
	// Port on 127.0.0.1, or 0 for one that is free.
	Port int
}

// NATS is a NATS server with JetStream in this process.
type NATS struct {
	server *server.Server
	cfg    NATSConfig
}

const natsStartTime = 10 * time.Second

// StartNATS starts a NATS server and waits until it takes connections.
func StartNATS(cfg NATSConfig) (*NATS, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = dir
	port := cfg.Port
	if port == 0 {
		port = server.RANDOM_PORT
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "wiggle-dev", Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir,
		NoLog: true, NoSigs: true, DisableJetStreamBanner: true,
	})
	if err != nil {
		return nil, fmt.Errorf("NATS: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(natsStartTime) {
		s.Shutdown()
		return nil, errors.New("the NATS server did not start; its port may be taken")
	}
	cfg.Port = portOf(s)
	return &NATS{server: s, cfg: cfg}, nil
}

func portOf(s *server.Server) int {
	var port int
	_, _ = fmt.Sscanf(s.ClientURL(), "nats://127.0.0.1:%d", &port)
	return port
}

// URL is where clients connect.
func (n *NATS) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", n.cfg.Port) }

// Dir is where the stream's files are.
func (n *NATS) Dir() string { return n.cfg.Dir }

// Stop ends the server and waits for it. What the stream held stays in its folder.
func (n *NATS) Stop() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
}

// Restart starts a stopped server again, on the same port and folder.
func (n *NATS) Restart() error {
	again, err := StartNATS(n.cfg)
	if err != nil {
		return err
	}
	n.server = again.server
	return nil
}
