package devstack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Profile trades durability for speed.
type Profile int

const (
	// Durable is PostgreSQL's default: a commit that was acknowledged is on disk.
	Durable Profile = iota
	// Throwaway never flushes: for tests, whose data need not survive the machine.
	Throwaway
)

const (
	// Superuser is the database role that every server has; it needs no password.
	Superuser = "postgres"

	defaultMaxConnections = 200
	defaultSharedBuffers  = "128MB"

	startTimeout  = 60 * time.Second // crash recovery of a big development database
	fastStopTime  = 15 * time.Second
	hardStopTime  = 5 * time.Second
	readyPollTime = 10 * time.Millisecond
	logTailBytes  = 2048
)

// ServerConfig says what server to run.
type ServerConfig struct {
	// Installation is whose programs to run; the zero value stands for what [Provide] gives.
	Installation Installation
	// Dir holds everything the server keeps: data/, and postgres.log. Created if missing. Required.
	Dir string
	// Profile is Durable by default.
	Profile Profile
	// TCP also listens on 127.0.0.1, at Port or, if that is 0, at a port that is free.
	TCP  bool
	Port int
	// MaxConnections is 200 by default.
	MaxConnections int
	// SharedBuffers is PostgreSQL's shared_buffers, "128MB" by default.
	SharedBuffers string
	// StatStatements loads pg_stat_statements if the installation has it.
	StatStatements bool
	// Settings are further settings; they win over those above.
	Settings map[string]string
}

// Server is a running PostgreSQL.
type Server struct {
	cfg       ServerConfig
	as        account
	socketDir string
	port      int
	proc      *process
	lock      *os.File // held as long as we use the directory
	primary   *Server  // nil unless this is a replica
}

// StartServer creates the data directory if it is missing, starts the server and waits until it takes connections. ctx
// bounds the start only. If anything fails, nothing is left running.
func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	return newServer(ctx, cfg, nil)
}

func newServer(ctx context.Context, cfg ServerConfig, primary *Server) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, err
	}
	if cfg.Installation.BinDir == "" {
		if cfg.Installation, err = Provide(ctx, ProvideOptions{PreferMajor: dataMajor(dataDir(cfg.Dir))}); err != nil {
			return nil, err
		}
	}
	s := &Server{cfg: cfg, as: as, port: cfg.Port, primary: primary}
	if err := s.start(ctx); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) (err error) {
	if err := os.MkdirAll(s.cfg.Dir, 0o755); err != nil { //nolint:gosec // data/ below is 0700
		return err
	}
	if s.lock, err = lockDir(s.cfg.Dir); err != nil {
		return err
	}
	if err := s.prepareDir(ctx); err != nil {
		return err
	}
	if s.socketDir, err = makeSocketDir(s.cfg.Dir, s.as); err != nil {
		return err
	}
	if s.port == 0 {
		if s.port, err = choosePort(s.cfg.TCP); err != nil {
			return err
		}
	}
	if s.primary != nil {
		if err := s.markStandby(); err != nil {
			return err
		}
	}
	return s.launch(ctx)
}

// release gives back what is ours besides the process.
func (s *Server) release() {
	if s.socketDir != "" {
		_ = os.RemoveAll(s.socketDir)
	}
	if s.lock != nil {
		unlock(s.lock)
	}
}

// Config returns the configuration with what was found out at the start, such as the installation.
func (s *Server) Config() ServerConfig { return s.cfg }

// Dir returns the directory of the configuration, absolute.
func (s *Server) Dir() string { return s.cfg.Dir }

// LogFile returns where the server writes its log.
func (s *Server) LogFile() string { return filepath.Join(s.cfg.Dir, "postgres.log") }

// PID returns the id of the postmaster.
func (s *Server) PID() int { return s.proc.cmd.Process.Pid }

// Port returns the port, which also names the socket.
func (s *Server) Port() int { return s.port }

// Exited is closed when the server has ended for whatever reason.
func (s *Server) Exited() <-chan struct{} { return s.proc.done }

// URL returns the connection string of a database, over the Unix socket.
func (s *Server) URL(database string) string {
	q := url.Values{"host": {s.socketDir}, "port": {strconv.Itoa(s.port)}}
	return "postgres://" + Superuser + "@/" + url.PathEscape(database) + "?" + q.Encode()
}

// TCPURL returns the connection string of a database over 127.0.0.1; it works only with ServerConfig.TCP.
func (s *Server) TCPURL(database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", Superuser, s.port, url.PathEscape(database))
}

// Stop ends the server: fast shutdown (sessions are cut, data is flushed), and if this takes over 15 s or ctx ends,
// immediate shutdown. When it returns, no process is left. Stopping twice is fine.
func (s *Server) Stop(ctx context.Context) error {
	defer s.release()
	fast, cancel := context.WithTimeout(ctx, fastStopTime)
	defer cancel()
	if err := s.proc.signal(syscall.SIGINT); err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	if s.ended(fast) {
		return nil
	}
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), hardStopTime)
	defer cancel()
	_ = s.proc.signal(syscall.SIGQUIT)
	if s.ended(hard) {
		return nil
	}
	_ = s.proc.signal(syscall.SIGKILL) // its children notice and leave
	<-s.proc.done
	return errors.New("PostgreSQL did not stop and was killed")
}

// Kill ends the server as a crash would (SIGQUIT to the postmaster), for tests of recovery.
func (s *Server) Kill() {
	_ = s.proc.signal(syscall.SIGQUIT)
	<-s.proc.done
	s.release()
}

func (s *Server) ended(ctx context.Context) bool {
	select {
	case <-s.proc.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// launch starts the postmaster and waits until it says that it is ready.
func (s *Server) launch(ctx context.Context) error {
	log, offset, err := openLog(s.LogFile())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(s.cfg.Installation.program("postgres"), s.args()...) //nolint:noctx,gosec // outlives ctx; our own program
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.cfg.Dir, childEnv(), log, log
	// SIGQUIT is immediate shutdown: nothing to wait for, and the next start recovers.
	if s.proc, err = startTied(cmd, s.as, syscall.SIGQUIT); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	poll := time.NewTicker(readyPollTime)
	defer poll.Stop()
	for {
		select {
		case <-s.proc.done:
			return fmt.Errorf("PostgreSQL did not start: %w\n%s", s.proc.err, logTail(s.LogFile(), offset))
		case <-ctx.Done():
			s.Kill()
			return fmt.Errorf("PostgreSQL did not start in time: %w\n%s", context.Cause(ctx), logTail(s.LogFile(), offset))
		case <-poll.C:
			if pf, err := readPidFile(dataDir(s.cfg.Dir)); err == nil && pf.pid == s.PID() && pf.ready {
				return nil
			}
		}
	}
}

// args are the postmaster's arguments. Settings go here rather than into postgresql.conf, so that the next start with
// another configuration gets just that.
func (s *Server) args() []string {
	cfg := s.cfg
	settings := map[string]string{
		"unix_socket_directories": s.socketDir,
		"unix_socket_permissions": "0700",
		"listen_addresses":        "",
		"port":                    strconv.Itoa(s.port),
		"max_connections":         strconv.Itoa(orDefault(cfg.MaxConnections, defaultMaxConnections)),
		"shared_buffers":          orDefault(cfg.SharedBuffers, defaultSharedBuffers),
		"log_destination":         "stderr",
		"logging_collector":       "off",
		"ssl":                     "off",
	}
	if cfg.TCP {
		settings["listen_addresses"] = "127.0.0.1"
	}
	if cfg.Profile == Throwaway {
		for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
			settings[name] = "off"
		}
		settings["max_wal_size"] = "2GB" // no checkpoints in the middle of tests
	}
	if cfg.StatStatements && hasLibrary(cfg.Installation, "pg_stat_statements") {
		settings["shared_preload_libraries"] = "pg_stat_statements"
	}
	if s.primary != nil {
		maps.Copy(settings, s.standbySettings())
	}
	maps.Copy(settings, cfg.Settings)
	args := []string{"-D", dataDir(cfg.Dir)}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// choosePort finds a free TCP port. Without TCP the number only names the socket in a directory of our own.
func choosePort(tcp bool) (int, error) {
	if !tcp {
		return 5432, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // local
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil //nolint:forcetypeassert // what a TCP listener has
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}
