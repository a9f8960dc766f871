package trouble

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
)

const (
	// takeover bounds how long duties may rest after the leader was killed.
	takeover = 5 * time.Second
	// The short forms, for CI; `make trouble` has the long ones.
	shortLeaderKills = 2
	shortNATSSeconds = 3
)

// number reads how long a test goes on from the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// followed starts a cluster with everything in it, for a test that takes so long on top of what all take.
func followed(t *testing.T, more time.Duration) (context.Context, *cluster.Cluster, cluster.Clients) {
	t.Helper()
	ctx, c, clients := startFor(t, cluster.Config{Shards: 2, Processes: 1, Leaders: 2, Search: true}, patience+more)
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	register(ctx, t, clients)
	return ctx, c, clients
}

// TestLeaderKilled: the leader is killed under load, again and again: nobody's call fails, the other takes its duties over
// within five seconds, each due time of a schedule fires once, and the stream has every event, in order (ARC-3, REP-1,
// EVT-4, EVT-8).
func TestLeaderKilled(t *testing.T) {
	kills := number(t, "WIGGLE_TROUBLE_LEADER_KILLS", shortLeaderKills)
	ctx, c, clients := followed(t, time.Duration(kills)*3*takeover)
	const scheduled, every = "scheduled", time.Second
	if _, err := until(ctx, func() error {
		_, err := clients.Workflows.RegisterWorkflow(ctx, &wigglev1.RegisterWorkflowRequest{Definition: noStep(scheduled).Proto()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := until(ctx, func() error {
		_, err := clients.Schedules.PutSchedule(ctx, &wigglev1.PutScheduleRequest{Schedule: &wigglev1.Schedule{
			Id: "each-second", Workflow: scheduled, Overlap: wigglev1.OverlapPolicy_OVERLAP_POLICY_ALLOW,
			When: &wigglev1.Schedule_Interval{Interval: &wigglev1.IntervalTimes{Every: durationpb.New(every)}},
		}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	p := newPulse(ctx, t, c)
	if _, err := p.await(ctx, nil); err != nil {
		t.Fatal(err)
	}
	l := startLoad(ctx, c, clients)
	usual := l.usual(ctx, max(usualTime, time.Duration(kills)*time.Second))
	for i := range kills {
		leads, err := leading(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		c.Leaders[leads].Kill()
		before, err := p.beats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		took, err := p.await(ctx, before)
		if err != nil || took > takeover {
			t.Errorf("kill %d of %s: heartbeats again after %s: %v", i+1, c.Leaders[leads].Name, took, err)
		}
		t.Logf("kill %d: %s was killed, heartbeats on every shard again after %s", i+1, c.Leaders[leads].Name, took)
		if err := l.leaveOut(func() error {
			defer cluster.Pause(ctx, time.Second)
			return c.Leaders[leads].Start()
		}); err != nil {
			t.Fatal(err)
		}
	}
	l.compare(t, "while leaders were killed", usual)
	l.end(ctx, t)
	checkDueTimes(ctx, t, clients, scheduled, every)
	checkStream(ctx, t, c, "test-leader-killed")
	awaitIndexed(ctx, t, clients)
}

// leading finds the leader by its readiness to say so.
func leading(ctx context.Context, c *cluster.Cluster) (int, error) {
	found := -1
	_, err := until(ctx, func() error {
		for i := range c.Leaders {
			if leads(ctx, c.LeaderURL(i)) {
				found = i
				return nil
			}
		}
		return fmt.Errorf("none of %d leads", len(c.Leaders))
	})
	return found, err
}

// checkDueTimes: from the first to the last instance of the schedule there is one for each due time, and only one.
func checkDueTimes(ctx context.Context, t *testing.T, clients cluster.Clients, workflow string, every time.Duration) {
	t.Helper()
	fired := map[int64]int{}
	var first, last int64
	page := ""
	for {
		res, err := clients.Instances.ListInstances(ctx, &wigglev1.ListInstancesRequest{
			Filter: &wigglev1.InstanceFilter{Workflow: workflow}, PageToken: page,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range res.GetInstances() {
			id, err := shardid.ParseInstance(in.GetId())
			if err != nil {
				t.Fatal(err)
			}
			u, _ := id.ULID()
			due := int64(u.Time())
			fired[due]++
			if first == 0 || due < first {
				first = due
			}
			last = max(last, due)
		}
		if page = res.GetNextPageToken(); page == "" {
			break
		}
	}
	if len(fired) == 0 {
		t.Error("the schedule has fired no time")
		return
	}
	for due := first; due <= last; due += every.Milliseconds() {
		if fired[due] != 1 {
			t.Errorf("the due time %s was fired %d times", time.UnixMilli(due).UTC().Format(time.RFC3339Nano), fired[due])
		}
		delete(fired, due)
	}
	for due := range fired {
		t.Errorf("%s was no due time", time.UnixMilli(due).UTC().Format(time.RFC3339Nano))
	}
	t.Logf("each due time fired once, from %s to %s", time.UnixMilli(first).UTC().Format(time.TimeOnly),
		time.UnixMilli(last).UTC().Format(time.TimeOnly))
}

// TestNATSAway: NATS is stopped under load, and once more with its storage deleted: the engine does not notice, and
// afterwards the stream and the index have everything (EVT-4, SRC-1).
func TestNATSAway(t *testing.T) {
	away := time.Duration(number(t, "WIGGLE_TROUBLE_NATS_SECONDS", shortNATSSeconds)) * time.Second
	ctx, c, clients := followed(t, 4*away)
	for i, wiped := range []bool{false, true} {
		l := startLoad(ctx, c, clients)
		usual := l.usual(ctx, usualTime)
		c.NATS.Kill()
		if wiped {
			if err := os.RemoveAll(c.NATSDir); err != nil {
				t.Fatal(err)
			}
		}
		cluster.Pause(ctx, away)
		l.compare(t, "without NATS", usual)
		if err := c.NATS.Start(); err != nil {
			t.Fatal(err)
		}
		l.end(ctx, t)
		checkStream(ctx, t, c, "test-nats-away-"+strconv.Itoa(i))
		awaitIndexed(ctx, t, clients)
	}
}

// TestFollowersDown: without NATS, the search shard, the leaders, the auth shard, one after the other and all at once, instances
// start and end for a caller that is known; and with the home shard down those of other shards do (ARC-1, AUT-6).
func TestFollowersDown(t *testing.T) {
	ctx, c, admin := checked(t, cluster.Config{
		Shards: 2, Processes: 1, Leaders: 2, Search: true, Auth: 1, AuthCache: shortCache,
	}, time.Minute)
	_, secret := newKey(ctx, t, admin, "app", "admin")
	app := as(t, c.RouterURL(), secret)
	everywhere := func(what string) {
		t.Helper()
		began := time.Now()
		for shard := range c.InstanceDatabases() {
			complete(ctx, t, c, app, shard)
		}
		t.Logf("%s: an instance completed on each shard in %s", what, time.Since(began))
	}
	everywhere("all there")
	away := []struct {
		name       string
		stop, back func() error
	}{
		{"the search shard", c.SearchDatabase.Kill, func() error { return c.SearchDatabase.Start(ctx) }},
		{"the search service", func() error { c.Search.Kill(); return nil }, c.Search.Start},
		{"NATS", func() error { c.NATS.Kill(); return nil }, c.NATS.Start},
		{
			"the leaders",
			func() error { c.Leaders[0].Kill(); c.Leaders[1].Kill(); return nil },
			func() error { return errors.Join(c.Leaders[0].Start(), c.Leaders[1].Start()) },
		},
		{"the auth shard", c.AuthDatabase.Kill, func() error { return c.AuthDatabase.Start(ctx) }},
		{"the auth service", func() error { c.Auth[0].Kill(); return nil }, c.Auth[0].Start},
	}
	for _, a := range away {
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
		everywhere("without " + a.name)
		if err := a.back(); err != nil {
			t.Fatal(err)
		}
	}
	signIn(ctx, t, app, cluster.AdminName, c.AdminPassword) // the router knows again who the caller is, before all are away
	if _, err := app.Auth.WhoAmI(ctx, &wigglev1.WhoAmIRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, a := range away {
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
	}
	everywhere("without all of them")
	cluster.Pause(ctx, shortCache)
	everywhere("without all of them, and after the time that the caller is cached")
	if err := c.Databases[0].Kill(); err != nil {
		t.Fatal(err)
	}
	complete(ctx, t, c, app, 1)
	t.Log("without home as well: an instance completed on shard 1")
	if err := c.Databases[0].Start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, a := range away {
		if err := a.back(); err != nil {
			t.Fatal(err)
		}
	}
	awaitIndexed(ctx, t, app)
}
