package backends

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	releases "github.com/wiggle-run/wiggle/pkg/release"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
)

// Config says how processes are looked after.
type Config struct {
	// Interval is how often a healthy process is asked for its status.
	Interval time.Duration
	// Timeout is how long a status may take.
	Timeout time.Duration
	// Release is our own, for the handshake.
	Release string
	Logger  *slog.Logger
	// OnHint gets each work hint, with the process that gives it. It must not block.
	OnHint func(process *Process, shard int, namespace, queue string)
	// OnReady is told of a shard that a process began to serve, or whose hints may have been missed. It must not block.
	OnReady func(shard int)
}

// Endpoint is the address of a process and the way to call it.
type Endpoint struct {
	// Name is the address. It is how a process is told from others, and what logs call it.
	Name   string
	Client Client
}

// Set is the set of processes.
type Set struct {
	cfg Config

	mu        sync.Mutex
	processes map[string]*Process
	greeted   map[string]struct{} // process ids whose other release was logged
	changed   chan struct{}       // closed and replaced with each change of the table

	table atomic.Pointer[map[int]Shard]
}

// Shard tells who serves a shard.
type Shard struct {
	// Processes serve the shard and have it ready, in the order in which to try them.
	Processes []*Process
	// Accepting are those of them that take new work.
	Accepting []*Process
	// Served tells that a process answers for the shard, ready or not.
	Served bool
	// Reason says why no process has it ready, for operators. Empty if one has.
	Reason string
	// Revision is how far the shard has received home's definitions, as far as known.
	Revision int64
	// Replicas are the shard's as the first of Processes sees them; if there is none, as another that serves it does.
	Replicas []*wigglev1.Replica
}

// New makes a set without processes.
func New(cfg Config) *Set {
	s := &Set{
		cfg: cfg, processes: make(map[string]*Process), greeted: make(map[string]struct{}), changed: make(chan struct{}),
	}
	s.table.Store(&map[int]Shard{})
	return s
}

// Run looks after the processes that updates names, always the last list, until ctx is done.
func (s *Set) Run(ctx context.Context, updates <-chan []Endpoint) {
	var wg sync.WaitGroup
	defer wg.Wait()
	stops := make(map[string]context.CancelFunc)
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case endpoints := <-updates:
			wanted := make(map[string]struct{}, len(endpoints))
			for _, e := range endpoints {
				wanted[e.Name] = struct{}{}
				if _, ok := stops[e.Name]; ok {
					continue
				}
				runCtx, stop := context.WithCancel(ctx)
				stops[e.Name] = stop
				p := newProcess(s, e.Name, e.Client)
				s.add(p)
				wg.Go(func() { p.run(runCtx) })
			}
			for name, stop := range stops {
				if _, ok := wanted[name]; !ok {
					stop()
					delete(stops, name)
				}
			}
		}
	}
}

// Shard tells who serves the shard now. A shard of which nothing was heard has no process.
func (s *Set) Shard(shard int) Shard { return (*s.table.Load())[shard] }

// Changed is closed when Shard may answer otherwise than before.
func (s *Set) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Failed takes note that a call to a process failed on the way, which was made while alive was its [Process.Alive]. If the
// process cannot be reached it is left out at once; else a probe tells.
func (s *Set) Failed(alive context.Context, p *Process, err error, unreachable bool) {
	s.mu.Lock()
	current := p.alive == alive
	s.mu.Unlock()
	if !current {
		return // the news is older than the process's return
	}
	if unreachable {
		s.lost(p, err)
	}
	p.probeSoon()
}

func (s *Set) add(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes[p.name] = p
	s.rebuild()
}

func (s *Set) gone(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.die()
	if s.processes[p.name] == p {
		delete(s.processes, p.name)
	}
	s.rebuild()
}

func (s *Set) answered(p *Process, status *wiggleinternalv1.StatusResponse) {
	s.mu.Lock()
	was := p.health
	p.health, p.missed = up, 0
	replaced := p.status != nil && p.status.GetProcessId() != status.GetProcessId()
	p.status = status
	if replaced && was != down {
		p.die() // calls to the process that was at this address before
	}
	if was == down || replaced {
		p.alive, p.die = context.WithCancel(context.Background())
	}
	if was == down {
		close(p.up)
	}
	s.greet(p)
	ready := s.rebuild()
	s.mu.Unlock()
	if was != up {
		s.cfg.Logger.Info("instances process answers", slog.String("process", p.name),
			slog.String("process_id", status.GetProcessId()))
	}
	for _, shard := range ready {
		s.cfg.OnReady(shard)
	}
}

// greet is the handshake: releases next to each other work together, but an operator should know.
func (s *Set) greet(p *Process) {
	id, release := p.status.GetProcessId(), p.status.GetRelease()
	if release == s.cfg.Release || release == "" || s.cfg.Release == "" {
		return
	}
	if _, known := s.greeted[id]; known {
		return
	}
	clear(s.greeted) // few processes differ at a time; logging one again does no harm
	s.greeted[id] = struct{}{}
	if releases.Compatible(s.cfg.Release, release) { // of those that are not, whoever made the client tells (releases.Peers)
		s.cfg.Logger.Info("instances process is of another release, which is compatible", slog.String("process", p.name),
			slog.String("release", release), slog.String("own_release", s.cfg.Release))
	}
}

func (s *Set) missedProbe(p *Process) {
	s.mu.Lock()
	if p.health == down {
		s.mu.Unlock()
		return
	}
	if p.missed++; p.missed > 1 {
		s.mu.Unlock()
		s.lost(p, context.DeadlineExceeded)
		return
	}
	p.health = suspect
	s.rebuild()
	s.mu.Unlock()
	s.cfg.Logger.Warn("instances process is slow to answer", slog.String("process", p.name))
}

func (s *Set) lost(p *Process, err error) {
	s.mu.Lock()
	was := p.health
	p.health = down
	if was != down {
		p.up = make(chan struct{})
		p.die()
		s.rebuild()
	}
	s.mu.Unlock()
	if was != down {
		s.cfg.Logger.Warn("instances process is gone", slog.String("process", p.name), slog.Any("error", err))
		// What it made ready and did not live to hint is for others to give out.
		s.resync(p)
	}
}

// resync announces all shards of a process anew: hints of them may be lost.
func (s *Set) resync(p *Process) {
	s.mu.Lock()
	status := p.status
	s.mu.Unlock()
	for _, shard := range status.GetShards() {
		if shard.GetReady() {
			s.cfg.OnReady(int(shard.GetShard()))
		}
	}
}

// candidate is a process that has a shard ready, with what decides its place.
type candidate struct {
	*Process
	rank  int
	score uint64
}

// rebuild computes who serves what, and answers the shards that became ready. The mutex is held.
func (s *Set) rebuild() []int {
	candidates := make(map[int][]candidate)
	table := make(map[int]Shard)
	reasons := make(map[int][]string)
	for _, p := range s.processes {
		if p.health == down {
			continue
		}
		for _, st := range p.status.GetShards() {
			id := int(st.GetShard())
			shard := table[id]
			shard.Served = true
			shard.Replicas = st.GetReplicas()
			if st.GetReady() {
				shard.Revision = max(shard.Revision, st.GetDefinitionsRevision())
				candidates[id] = append(candidates[id], p.candidate(id))
			} else if st.GetReason() != "" {
				reasons[id] = append(reasons[id], st.GetReason())
			}
			table[id] = shard
		}
	}
	before := *s.table.Load()
	var ready []int
	for id, shard := range table {
		shard.Processes, shard.Accepting = inOrder(candidates[id])
		if len(shard.Processes) == 0 {
			shard.Reason = reasonOf(reasons[id])
		} else {
			shard.Replicas = shard.Processes[0].replicas(id)
		}
		if len(shard.Accepting) > 0 && len(before[id].Accepting) == 0 {
			ready = append(ready, id)
		}
		table[id] = shard
	}
	s.table.Store(&table)
	close(s.changed)
	s.changed = make(chan struct{})
	return ready
}

// replicas are a shard's as the process sees them. The mutex is held.
func (p *Process) replicas(shard int) []*wigglev1.Replica {
	for _, st := range p.status.GetShards() {
		if int(st.GetShard()) == shard {
			return st.GetReplicas()
		}
	}
	return nil
}

func (p *Process) candidate(shard int) candidate {
	rank := 0
	switch {
	case p.health == suspect:
		rank = 2
	case p.status.GetDraining():
		rank = 1
	}
	id := p.status.GetProcessId()
	if id == "" {
		id = p.name
	}
	return candidate{Process: p, rank: rank, score: xxh3.HashStringSeed(id, uint64(shard))} //nolint:gosec // a seed
}

func inOrder(list []candidate) (all, accepting []*Process) {
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.score, a.score), strings.Compare(a.name, b.name))
	})
	for _, c := range list {
		all = append(all, c.Process)
		if !c.status.GetDraining() {
			accepting = append(accepting, c.Process)
		}
	}
	return all, accepting
}

func reasonOf(reasons []string) string {
	if len(reasons) == 0 {
		return "the process that serves it does not have it ready"
	}
	slices.Sort(reasons)
	return strings.Join(slices.Compact(reasons), "; ")
}

// ProcessState is what is known of one process, for operators.
type ProcessState struct {
	Name      string
	ProcessID string
	Release   string
	Health    string
	Draining  bool
}

// States lists the processes by name.
func (s *Set) States() []ProcessState {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]ProcessState, 0, len(s.processes))
	for _, name := range slices.Sorted(maps.Keys(s.processes)) {
		p := s.processes[name]
		list = append(list, ProcessState{
			Name: name, ProcessID: p.status.GetProcessId(), Release: p.status.GetRelease(),
			Health: p.health.String(), Draining: p.status.GetDraining(),
		})
	}
	return list
}
