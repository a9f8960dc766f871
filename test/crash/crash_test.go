package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
	"github.com/wiggle-run/wiggle/test/crash/ledger"
)

const (
	workers = 2
	// shortKills is a run that CI can afford; from longKills on instances do one round more.
	shortKills, longKills = 8, 25
	// gaps between kills, on average.
	shortGap, longGap = 1100 * time.Millisecond, 2600 * time.Millisecond
	// setUp and settle bound what comes before the killing and after it.
	setUp, settle = 90 * time.Second, 3 * time.Minute

	shownInstances, shownLogLines = 3, 25
)

func TestMain(m *testing.M) { cluster.Main(m, map[string]cluster.Role{roleWorker: runWorker}) }

// settings are what the environment asks for.
type settings struct {
	kills, instances, rounds int
	seed                     uint64
	gap                      time.Duration
}

func readSettings(t *testing.T) settings {
	t.Helper()
	number := func(name string, otherwise uint64) uint64 {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	s := settings{rounds: 1, gap: shortGap}
	s.kills = int(number("WIGGLE_CRASH_KILLS", shortKills))
	s.instances = int(number("WIGGLE_CRASH_INSTANCES", uint64(max(200, 20*s.kills))))
	s.seed = number("WIGGLE_CRASH_SEED", rand.Uint64()%1_000_000)
	if s.kills >= longKills {
		s.rounds, s.gap = 2, longGap
	}
	return s
}

// scene is a crash test under way.
type scene struct {
	*testing.T
	settings
	cluster  *cluster.Cluster
	workers  []*cluster.Process
	clients  cluster.Clients
	journals []string
	killer   *killer
}

// TestCrash kills whatever there is, again and again (ARC-3, WRK-5, ENG-23).
func TestCrash(t *testing.T) {
	s := &scene{T: t, settings: readSettings(t)}
	t.Logf("%d kills, %d instances, WIGGLE_CRASH_SEED=%d", s.kills, s.instances, s.seed)
	s.build()

	s.killer = &killer{began: time.Now()}
	strikes := schedule(s.seed, victimsOf(s.cluster, s.workers), s.kills, s.gap)
	killing := duration(strikes)
	ctx, cancel := context.WithTimeout(t.Context(), killing+settle)
	defer cancel()
	runs := plan(rand.New(rand.NewPCG(s.seed, 1)), s.killer.began, s.instances, s.rounds, killing)
	started := make(chan error, 1)
	go func() { started <- startAll(ctx, s.clients, s.killer.began, runs) }()
	s.killer.run(ctx, strikes)
	killed := time.Since(s.killer.began)
	if err := errors.Join(append(s.killer.errs, <-started)...); err != nil {
		t.Error(err)
	}
	if _, err := awaitEnds(ctx, s.clients, s.instances); err != nil {
		t.Error(err)
	}
	ended := time.Since(s.killer.began)
	s.repeatStarts(ctx, runs)
	for _, w := range s.workers {
		w.Kill() // their journals are complete from here
	}
	lines := s.lines()
	verdicts := verifyAll(ctx, s.clients, runs, lines)
	s.judge(verdicts)
	t.Logf("killing took %s, the last instance ended after %s, all was verified after %s; %s",
		killed.Round(time.Millisecond), ended.Round(time.Millisecond), time.Since(s.killer.began).Round(time.Millisecond),
		figures(verdicts, lines, s.killer.kills))
}

// build starts the cluster and its workers, and registers the workflows.
func (s *scene) build() {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), setUp)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Config{Shards: 2, Processes: 2})
	if err != nil {
		s.Fatal(err)
	}
	s.cluster = c
	s.Cleanup(s.tearDown)
	if err := c.WaitReady(ctx); err != nil {
		s.Fatal(err)
	}
	if s.clients, err = cluster.Dial(c.RouterURL()); err != nil {
		s.Fatal(err)
	}
	for _, d := range definitions() {
		if _, err := eventually(ctx, func(ctx context.Context) (*wigglev1.RegisterWorkflowResponse, error) {
			return s.clients.Workflows.RegisterWorkflow(ctx, &wigglev1.RegisterWorkflowRequest{Definition: d.Proto()})
		}); err != nil {
			s.Fatal(err)
		}
	}
	for i := range workers {
		name := "worker-" + strconv.Itoa(i)
		cfg := workerConfig{Name: name, Router: c.RouterURL(), Journal: filepath.Join(c.Dir, name+".journal")}
		p, err := c.NewProcess(name, roleWorker, cfg)
		if err == nil {
			err = p.Start()
		}
		if err != nil {
			s.Fatal(err)
		}
		s.workers, s.journals = append(s.workers, p), append(s.journals, cfg.Journal)
	}
}

// tearDown ends everything, and tells about a run that failed what there is to tell.
func (s *scene) tearDown() {
	for _, err := range s.cluster.Odd() {
		s.Error(err)
	}
	if err := s.cluster.Close(); err != nil {
		s.Error(err)
	}
	for name, lines := range s.alarms() {
		s.Errorf("in the log of %s:\n%s", name, strings.Join(lines, "\n"))
	}
	if !s.Failed() {
		if err := s.cluster.Remove(); err != nil {
			s.Error(err)
		}
		return
	}
	s.Logf("WIGGLE_CRASH_SEED=%d WIGGLE_CRASH_KILLS=%d WIGGLE_CRASH_INSTANCES=%d; everything is in %s",
		s.seed, s.kills, s.instances, s.cluster.Dir)
	if s.killer != nil {
		s.Logf("kills, from %s on:\n%s", s.killer.began.Format("15:04:05.000"), strings.Join(s.killer.log, "\n"))
	}
	files := s.cluster.LogFiles()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		s.Logf("the end of %s:\n%s", files[name], strings.Join(tail(files[name], shownLogLines), "\n"))
	}
}

// alarms are lines of logs that no kill explains.
func (s *scene) alarms() map[string][]string {
	found := map[string][]string{}
	for name, file := range s.cluster.LogFiles() {
		for _, line := range tail(file, -1) {
			for _, alarm := range []string{"DATA RACE", "panic: ", "fatal error: ", "PANIC: ", "level=ERROR"} {
				if strings.Contains(line, alarm) {
					found[name] = append(found[name], line)
				}
			}
		}
	}
	return found
}

// tail is the end of a file by lines; all of it if n is negative.
func tail(file string, n int) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if n >= 0 && len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return lines
}

// repeatStarts sends some starts once more, now that their instances have ended:
// they must be known.
func (s *scene) repeatStarts(ctx context.Context, runs []*run) {
	s.Helper()
	for i, r := range runs {
		if i%20 != 0 {
			continue
		}
		res, err := eventually(ctx, func(ctx context.Context) (*wigglev1.StartInstanceResponse, error) {
			return s.clients.Instances.StartInstance(ctx, r.req)
		})
		if err != nil || res.GetCreated() || res.GetInstanceId() != r.id {
			s.Errorf("the start of %s was sent again after its end: %v, %v", r.id, res, err)
		}
	}
}

func (s *scene) lines() []ledger.Line {
	s.Helper()
	var all []ledger.Line
	for _, path := range s.journals {
		lines, err := ledger.ReadJournal(path)
		if err != nil {
			s.Error(err)
		}
		all = append(all, lines...)
	}
	return all
}

// judge tells about instances that are wrong, the first with their histories.
func (s *scene) judge(verdicts []*verdict) {
	s.Helper()
	wrong := 0
	for _, v := range verdicts {
		if len(v.problems) == 0 {
			continue
		}
		if wrong++; wrong > shownInstances {
			continue
		}
		s.Errorf("instance %d (%s):\n  %s\n its history:\n  %s", v.run.input.N, v.run.id,
			strings.Join(v.problems, "\n  "), strings.Join(ledger.Describe(v.history), "\n  "))
	}
	if wrong > shownInstances {
		s.Errorf("%d instances are wrong in all", wrong)
	}
}

// TestScheduleIsRepeatable: a seed stands for the same victims at the same times,
// and each kind has its turn.
func TestScheduleIsRepeatable(t *testing.T) {
	t.Parallel()
	kinds := func() [][]*victim {
		var kinds [][]*victim
		for kind := range 4 {
			var list []*victim
			for i := range 1 + kind%2 {
				list = append(list, newVictim(fmt.Sprint(kind, "-", i), nil, nil))
			}
			kinds = append(kinds, list)
		}
		return kinds
	}
	tell := func(seed uint64) (text string, count map[byte]int) {
		count = map[byte]int{}
		for _, s := range schedule(seed, kinds(), 40, time.Second) {
			text += fmt.Sprintln(s.victim.name, s.after, s.pause)
			count[s.victim.name[0]]++
		}
		return text, count
	}
	first, count := tell(7)
	if second, _ := tell(7); first != second {
		t.Error("the same seed gave two schedules")
	}
	if other, _ := tell(8); first == other {
		t.Error("two seeds gave the same schedule")
	}
	for kind := range byte(4) {
		if count['0'+kind] != 10 {
			t.Errorf("kind %d is killed %d times of 40, want 10", kind, count['0'+kind])
		}
	}
}
