package work

import (
	"context"
	"log/slog"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// group is the items of a message that go to one shard.
type group struct {
	link    *link
	items   []item
	settles int
}

// fromWorker passes a worker's message on.
func (s *session) fromWorker(req *request, first bool) error {
	if req.hello != nil && !first {
		return faults.InvalidArgument("hello must be in the first message of a stream only")
	}
	s.judge(req.items)
	groups, err := s.pass(req, first)
	if err != nil {
		return err
	}
	// A shard that does not take what it is sent may hold the others up for a moment only.
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	for _, g := range groups {
		if !g.link.out.room(ctx) {
			break
		}
	}
	return nil
}

func (s *session) pass(req *request, first bool) ([]*group, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.confirm(req.received) {
		return nil, faults.InvalidArgument("received is %d, more than the tasks that were sent", req.received)
	}
	if err := s.ledger.grant(req.credits); err != nil {
		return nil, err
	}
	groups, refused := s.groups(req.items)
	left := req.credits
	for _, g := range groups {
		s.ledger.settled(g.link.share, g.settles, left)
		left = max(left-g.settles, 0)
	}
	if req.revoke > 0 {
		s.ledger.revoke(req.revoke)
	}
	s.ledger.settle()
	if req.look {
		for l := range s.links {
			l.look = true
		}
	}
	for _, g := range groups {
		c := g.link.orders()
		c.received, g.link.told = g.link.confirmed, g.link.confirmed
		if len(g.items) == len(req.items) && !first {
			g.link.out.put(req.forward(c))
		} else {
			g.link.out.put(part(g.items, c))
		}
	}
	if refused != nil {
		s.out.put(refused)
	}
	s.flush()
	return groups, nil
}

// groups sorts items by shard. Those that can go to none are answered.
func (s *session) groups(items []item) (groups []*group, refused []byte) {
	cluster := s.hub.cluster()
	var res *wigglev1.WorkResponse
	for _, it := range items {
		shard, err := cluster.Task(it.taskID)
		if it.denied != nil {
			err = it.denied
		}
		if err == nil {
			at := s.slots[shard]
			if at != nil && at.link != nil && !at.link.out.full() {
				groups = addTo(groups, at.link, it)
				continue
			}
			err = faults.ShardUnavailable(shard, retryAfter)
		}
		if res == nil {
			res = &wigglev1.WorkResponse{}
		}
		addFault(res, it, s.fault(err))
	}
	if res == nil {
		return groups, nil
	}
	return groups, s.marshal(res)
}

func addTo(groups []*group, l *link, it item) []*group {
	var g *group
	for _, o := range groups {
		if o.link == l {
			g = o
		}
	}
	if g == nil {
		g = &group{link: l}
		groups = append(groups, g)
	}
	g.items = append(g.items, it)
	if it.settles() {
		g.settles++
	}
	return groups
}

func addFault(res *wigglev1.WorkResponse, it item, fault *wigglev1.Fault) {
	outcome := &wigglev1.TaskOutcome{TaskId: it.taskID, Lease: string(it.lease), Fault: fault}
	switch it.field {
	case fieldReports:
		res.Reported = append(res.Reported, outcome)
	case fieldFailures:
		res.Failed = append(res.Failed, &wigglev1.FailureOutcome{
			TaskId: outcome.GetTaskId(), Lease: outcome.GetLease(), Fault: fault,
		})
	case fieldBeats:
		res.Beats = append(res.Beats, &wigglev1.BeatOutcome{TaskId: outcome.GetTaskId(), Lease: outcome.GetLease(), Fault: fault})
	case fieldReleases:
		res.Released = append(res.Released, outcome)
	}
}

func (s *session) marshal(res *wigglev1.WorkResponse) []byte {
	b, err := proto.Marshal(res)
	if err != nil {
		s.fail(faults.Internal(err))
	}
	return b
}

// refuse answers what was to be sent to a shard that could not be reached. The mutex is
// held.
func (s *session) refuse(frames [][]byte, shard int) {
	fault := s.fault(faults.ShardUnavailable(shard, retryAfter))
	for _, frame := range frames {
		req, err := parseRequest(frame)
		if err != nil {
			s.fail(err) // it was read before
			return
		}
		res := &wigglev1.WorkResponse{}
		for _, it := range req.items {
			addFault(res, it, fault)
		}
		if len(req.items) > 0 {
			s.out.put(s.marshal(res))
		}
	}
}

// confirm takes note that the worker has got so many tasks in all. It is false if that
// many were not sent. The mutex is held.
func (s *session) confirm(n int64) bool {
	for n > s.received && len(s.runs) > 0 {
		s.confirmRun(min(n-s.received, s.runs[0].n))
	}
	return n <= s.received
}

// confirmRun confirms n tasks of the first run.
func (s *session) confirmRun(n int64) {
	r := &s.runs[0]
	r.link.confirmed += n
	s.received += n
	if r.n -= n; r.n == 0 {
		r.link = nil
		s.runs = s.runs[1:]
	}
}

// fromShard passes a shard's message on.
func (s *session) fromShard(l *link, b []byte) error {
	res, err := parseResponse(b)
	if err != nil {
		return faults.Internal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ledger.used(l.share, res.tasks); err != nil {
		return err
	}
	if res.tasks > 0 {
		s.sent(l, int64(res.tasks))
	}
	// How many credits were given back is a message of its own, be it none.
	if own := res.tasks == 0 && !res.answers; own || res.revoked != 0 {
		if err := s.ledger.returned(l.share, res.revoked); err != nil {
			return err
		}
	}
	if res.tasks > 0 || res.answers {
		s.out.put(res.forward())
	}
	if res.draining && !l.leaving {
		s.hub.logger.DebugContext(s.ctx, "a shard's process drains", slog.Int("shard", l.shard), slog.String("process", l.process.Name()))
		s.replace(l)
	}
	s.flush()
	return nil
}

// sent takes note of tasks on their way to the worker. The mutex is held.
func (s *session) sent(l *link, n int64) {
	if last := len(s.runs) - 1; last >= 0 && s.runs[last].link == l {
		s.runs[last].n += n
		return
	}
	if len(s.runs) == maxRuns {
		s.confirmRun(s.runs[0].n) // a worker that confirms nothing
	}
	s.runs = append(s.runs, run{link: l, n: n})
}
