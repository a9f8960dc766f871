package trouble

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/bus"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
)

// load is what clients do while services that the hot path does not need come and go: start and work.
type load struct {
	c       *cluster.Cluster
	clients cluster.Clients
	starts  calls
	works   calls

	stop context.CancelFunc
	done sync.WaitGroup
}

const (
	loadStarters, loadWorkers = 2, 2
	startPause                = 5 * time.Millisecond
)

// startLoad begins with it.
func startLoad(ctx context.Context, c *cluster.Cluster, clients cluster.Clients) *load {
	l := &load{c: c, clients: clients}
	use, stop := context.WithCancel(ctx)
	l.stop = stop
	for i := range loadStarters {
		l.done.Go(func() {
			for use.Err() == nil {
				l.starts.measure("StartInstance", func() error {
					_, err := clients.Instances.StartInstance(ctx, startOn(c.Topology, i%2))
					return err
				})
				cluster.Pause(use, startPause)
			}
		})
	}
	for range loadWorkers {
		l.done.Go(func() {
			for use.Err() == nil {
				l.works.measure("work", func() error { _, err := work(ctx, clients); return err })
			}
		})
	}
	return l
}

// usualTime is for how long it is at least seen what starts usually take.
const usualTime = 3 * time.Second

// usual lets the load go on for d, and tells the p99 of starts in it, apart from what follows.
func (l *load) usual(ctx context.Context, d time.Duration) time.Duration {
	cluster.Pause(ctx, time.Second)
	l.starts.reset()
	cluster.Pause(ctx, d)
	p99 := l.starts.p99()
	l.starts.reset()
	return p99
}

// leaveOut does something that takes the cores from the load without being what is measured, as starting a process does.
// Calls that fail meanwhile count as ever.
func (l *load) leaveOut(do func() error) error {
	n, _, _ := l.starts.summary()
	defer l.starts.forget(n)
	return do()
}

// compare holds what starts took since against what is usual. The bound is wide, as other tests use the machine too; the figures
// are told.
func (l *load) compare(t *testing.T, when string, usual time.Duration) {
	t.Helper()
	n, median, longest := l.starts.summary()
	p99 := l.starts.p99()
	t.Logf("%d starts %s: median %s, p99 %s, longest %s; p99 is usually %s", n, when, median, p99, longest, usual)
	if bound := 5*usual + 100*time.Millisecond; p99 > bound {
		t.Errorf("the p99 of starts %s was %s, and is usually %s", when, p99, usual)
	}
}

// end stops the starts, works off what is left, and judges the calls: none failed.
func (l *load) end(ctx context.Context, t *testing.T) {
	t.Helper()
	l.stop()
	l.done.Wait()
	if _, err := until(ctx, func() error {
		n, err := work(ctx, l.clients)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d tasks were left", n)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	n, median, longest := l.starts.summary()
	t.Logf("%d starts under it: median %s, longest %s", n, median, longest)
	for _, c := range []*calls{&l.starts, &l.works} {
		for i, err := range c.failed {
			if i < shownErrors {
				t.Error(err)
			}
		}
		if len(c.failed) > shownErrors {
			t.Errorf("%d calls failed", len(c.failed))
		}
	}
}

const shownErrors = 5

// query asks a database with a connection of its own.
func query[T any](ctx context.Context, d *cluster.Database, sql string, row func(pgx.CollectableRow) (T, error)) ([]T, error) {
	conn, err := pgx.Connect(ctx, d.URL())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, row)
}

// pulse feels the heartbeats of all shards. It keeps its connections: to open three of them fifty
// times a second costs starts more than a leader's death.
type pulse struct{ conns []*pgx.Conn }

func newPulse(ctx context.Context, t *testing.T, c *cluster.Cluster) *pulse {
	t.Helper()
	p := &pulse{}
	for _, d := range c.Databases {
		conn, err := pgx.Connect(ctx, d.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(ctx)) })
		p.conns = append(p.conns, conn)
	}
	return p
}

// beats are the numbers of the heartbeats, by shard.
func (p *pulse) beats(ctx context.Context) ([]int64, error) {
	all := make([]int64, len(p.conns))
	for i, conn := range p.conns {
		if err := conn.QueryRow(ctx, "select beat from wiggle_heartbeat").Scan(&all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// await waits until every shard has a newer beat than those given, and tells how long it took.
func (p *pulse) await(ctx context.Context, than []int64) (time.Duration, error) {
	return until(ctx, func() error {
		now, err := p.beats(ctx)
		if err != nil {
			return err
		}
		for i, beat := range now {
			if i < len(than) && beat <= than[i] {
				return fmt.Errorf("no heartbeat on database %d", i)
			}
		}
		return nil
	})
}

// entry names an entry of a log.
type entry struct {
	shard int
	seq   int64
}

// logged are all entries of the shards' logs, with the instance of each.
func logged(ctx context.Context, c *cluster.Cluster) (map[entry]string, error) {
	all := map[entry]string{}
	for shard, d := range c.InstanceDatabases() {
		type row struct {
			Seq      int64
			Instance string
		}
		got, err := query(ctx, d, "select seq, instance_id::text from events", pgx.RowToStructByPos[row])
		if err != nil {
			return nil, err
		}
		for _, r := range got {
			all[entry{shard, r.Seq}] = r.Instance
		}
	}
	return all, nil
}

const (
	streamBatch = 1000
	streamWait  = 200 * time.Millisecond
)

// checkStream reads the stream from its beginning and holds it against the logs: every entry is there, and those of an
// instance in their order (EVT-4). It goes on until nothing is missing, or ctx ends.
func checkStream(ctx context.Context, t *testing.T, c *cluster.Cluster, group string) {
	t.Helper()
	want, err := logged(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bus.Open(bus.Config{URLs: []string{c.NATSURL}, Name: group})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	follower := b.Follow(group)
	last := map[string]int64{}
	seen := map[entry]bool{}
	total, repeated := len(want), 0
	for len(want) > 0 && ctx.Err() == nil {
		got, err := follower.Fetch(ctx, streamBatch, streamWait)
		if err != nil {
			continue // until ctx ends
		}
		for i := range got {
			d := &got[i]
			e := entry{d.Shard, d.Seq}
			delete(want, e)
			if seen[e] {
				repeated++
			} else if d.Seq < last[d.Instance] {
				t.Errorf("%s of %s (number %d) stands behind number %d", d.Type, d.Instance, d.Seq, last[d.Instance])
			}
			seen[e] = true
			last[d.Instance] = max(last[d.Instance], d.Seq)
			if err := d.Ack(); err != nil {
				t.Error(err)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("%d of %d entries are not in the stream", len(want), total)
	}
	t.Logf("%d entries are in the stream, in order; %d came twice", total, repeated)
}

// awaitIndexed waits until search finds every instance that has ended, and the comparison finds no difference.
func awaitIndexed(ctx context.Context, t *testing.T, clients cluster.Clients) {
	t.Helper()
	took, err := until(ctx, func() error {
		ended, err := clients.Instances.CountInstances(ctx, &wigglev1.CountInstancesRequest{Filter: &wigglev1.InstanceFilter{
			States: []wigglev1.InstanceState{wigglev1.InstanceState_INSTANCE_STATE_COMPLETED},
		}})
		if err != nil {
			return err
		}
		found, err := clients.Search.CountFacets(ctx, &wigglev1.CountFacetsRequest{Filter: &wigglev1.SearchFilter{
			States: []wigglev1.InstanceState{wigglev1.InstanceState_INSTANCE_STATE_COMPLETED},
		}})
		if err != nil {
			return err
		}
		if found.GetTotal() != ended.GetTotal() {
			return fmt.Errorf("search finds %d of %d", found.GetTotal(), ended.GetTotal())
		}
		t.Logf("search finds all %d", ended.GetTotal())
		return nil
	})
	if err != nil {
		t.Error(err)
		return
	}
	t.Logf("the index was complete after %s", took)
	drift, err := verify(ctx, clients)
	if err != nil {
		t.Error(err)
		return
	}
	if drift.GetMissing()+drift.GetStale()+drift.GetOrphaned() > 0 || drift.GetCompared() == 0 {
		t.Errorf("the index differs: %v", drift)
	}
}

// verify compares the index with the instances; the answer is the last.
func verify(ctx context.Context, clients cluster.Clients) (*wigglev1.VerifyResponse, error) {
	stream, err := clients.Search.Verify(ctx, &wigglev1.VerifyRequest{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	var last *wigglev1.VerifyResponse
	for stream.Receive() {
		last = stream.Msg()
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	if !last.GetDone() {
		return nil, fmt.Errorf("the comparison broke off: %v", last)
	}
	return last, nil
}
