package devstack

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

func startTestServer(t *testing.T, cfg ServerConfig) *Server {
	t.Helper()
	s, err := StartServer(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.WithoutCancel(t.Context())) })
	return s
}

// query runs a query with one answer.
func query(t *testing.T, url, sql string) (answer string, err error) {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.MemberConfig{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	return answer, pool.QueryRow(t.Context(), sql).Scan(&answer)
}

func TestServer(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	s := startTestServer(t, ServerConfig{
		Dir: dir, Profile: Throwaway, TCP: true, StatStatements: true, MaxConnections: 17, Settings: map[string]string{"work_mem": "7MB"},
	})
	for range 2 { // the second time it exists
		if err := s.CreateDatabase(t.Context(), "s0"); err != nil {
			t.Fatal(err)
		}
	}
	for _, url := range []string{s.URL("s0"), s.TCPURL("s0")} {
		got, err := query(t, url, `select concat_ws(' ', current_database(), current_setting('fsync'), current_setting('max_connections'),
			current_setting('work_mem'), current_setting('server_encoding'), current_setting('lc_messages'),
			current_setting('listen_addresses'))`)
		if want := "s0 off 17 7MB UTF8 C 127.0.0.1"; err != nil || got != want {
			t.Errorf("%s: %q, %v", url, got, err)
		}
	}
	if got, err := query(t, s.URL("s0"), "show shared_preload_libraries"); err != nil || (got == "pg_stat_statements") != hasLibrary(s.cfg.Installation, "pg_stat_statements") {
		t.Errorf("preloaded: %q, %v", got, err)
	}
	var inUse *InUseError
	if _, err := StartServer(t.Context(), ServerConfig{Dir: dir}); !errors.As(err, &inUse) || inUse.PID != s.PID() {
		t.Errorf("a second start: %v", err)
	}
	if err := Reset(dir); !errors.As(err, &inUse) {
		t.Errorf("reset under a live server: %v", err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive(s.PID()) {
		t.Error("the postmaster is alive")
	}
	if _, err := os.Stat(s.socketDir); err == nil {
		t.Errorf("%s is left", s.socketDir)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Errorf("a second stop: %v", err)
	}
	if err := Reset(dir); err != nil || dataMajor(dataDir(dir)) != 0 {
		t.Errorf("reset: %v", err)
	}
}

func TestDataSurvives(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	s := startTestServer(t, ServerConfig{Dir: dir})
	if got, err := query(t, s.URL("postgres"), "select concat_ws(' ', current_setting('fsync'), current_setting('listen_addresses'))"); err != nil || got != "on " {
		t.Errorf("%q, %v", got, err)
	}
	if err := s.CreateDatabase(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	// What a killed run may leave: the id of a process that is now something else.
	pid := filepath.Join(dataDir(dir), "postmaster.pid")
	if err := os.WriteFile(pid, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = startTestServer(t, ServerConfig{Dir: dir})
	if got, err := query(t, s.URL("kept"), "select current_database()::text"); err != nil || got != "kept" {
		t.Errorf("%q, %v", got, err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dataDir(dir), "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := StartServer(t.Context(), ServerConfig{Dir: dir}); err == nil || !strings.Contains(err.Error(), "written by PostgreSQL 9") {
		t.Errorf("another version: %v", err)
	}
}

func TestReplicaFollows(t *testing.T) {
	t.Parallel()
	primary := startTestServer(t, ServerConfig{Dir: testDir(t), Profile: Throwaway})
	replica, err := StartReplica(t.Context(), primary, ServerConfig{Dir: testDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = replica.Stop(context.WithoutCancel(t.Context())) })
	if got, err := query(t, replica.URL("postgres"), "select pg_is_in_recovery()::text"); err != nil || got != "true" {
		t.Fatalf("in recovery: %q, %v", got, err)
	}
	if err := primary.CreateDatabase(t.Context(), "later"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the replica has it", func() bool {
		got, err := query(t, replica.URL("postgres"), "select count(*)::text from pg_database where datname = 'later'")
		return err == nil && got == "1"
	})
	if err := replica.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if replica, err = StartReplica(t.Context(), primary, ServerConfig{Dir: replica.Dir()}); err != nil {
		t.Fatal(err)
	}
	if got, err := query(t, replica.URL("later"), "select pg_is_in_recovery()::text"); err != nil || got != "true" {
		t.Errorf("started again: %q, %v", got, err)
	}
}

func TestTwoServersAtOnce(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for range 2 {
		dir := testDir(t)
		wg.Go(func() {
			s, err := StartServer(t.Context(), ServerConfig{Dir: dir, Profile: Throwaway, TCP: true})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestStartFailureShowsTheLog(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	_, err := StartServer(t.Context(), ServerConfig{Dir: dir, Profile: Throwaway, Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := StartServer(ctx, ServerConfig{Dir: testDir(t)}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	startTestServer(t, ServerConfig{Dir: dir, Profile: Throwaway}) // nothing stands in the way
}

func TestUnreachableDirectory(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(dir, "below")
	stranger := account{name: "nobody", uid: 65534, gid: 65534, switched: true}
	errs := []error{stranger.canReach(below)}
	if os.Geteuid() == 0 { // then the server has an account of its own
		_, err := StartServer(t.Context(), ServerConfig{Dir: below})
		errs = append(errs, err)
	}
	for _, err := range errs {
		if err == nil || !strings.Contains(err.Error(), dir+" has mode 0700") || !strings.Contains(err.Error(), DefaultDataDir()) {
			t.Errorf("got %v", err)
		}
	}
}

func TestSocketPathIsShort(t *testing.T) {
	t.Parallel()
	as, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := makeSocketDir(strings.Repeat("/a-long-name", 40), as)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if len(dir)+len("/.s.PGSQL.65535") > maxSocketPath {
		t.Errorf("%s is too long", dir)
	}
}

// waitFor polls a condition that another process brings about.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for !cond() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// The signal of a terminal reaches everyone in the foreground group; the server is not in it.
func TestServerIsNotInOurGroup(t *testing.T) {
	t.Parallel()
	s := startTestServer(t, ServerConfig{Dir: testDir(t), Profile: Throwaway})
	if group, err := syscall.Getpgid(s.PID()); err != nil || group != s.PID() {
		t.Errorf("group %d, pid %d, %v", group, s.PID(), err)
	}
	if os.Geteuid() == 0 {
		var stat syscall.Stat_t
		if err := syscall.Stat("/proc/"+strconv.Itoa(s.PID()), &stat); err == nil && stat.Uid == 0 {
			t.Error("runs as root")
		}
	}
}
