//go:build compose

package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/demo"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// services are Wiggle's own, in the order in which they are stopped and restarted.
var services = []string{"router", "instances", "leader", "search", "auth"}

// beside are containers without which orders go on as well.
var beside = []string{"nats", "pg-s0-replica", "collector"}

const (
	scaled = 4
	// searchTime is how long the index may be behind.
	searchTime = 2 * time.Minute
)

// TestCompose: OPS-3, OPS-4, and 4 and 7 of issue 5.
func TestCompose(t *testing.T) { //nolint:paralleltest // it has the machine to itself
	s := newStack(t)
	defer s.down()
	s.must("./stack", "down", "--volumes", "--remove-orphans") // what a test that was killed left behind
	s.say("building the images and starting the stack")
	up := append([]string{"up", "-d", "--build"}, s.wanted()...)
	s.must("./stack", up...)
	s.awaitWell(0)
	s.say("everything is healthy")
	s.checkImages()
	s.environ = append(s.environ, "WIGGLE_API_KEY="+s.signIn())
	s.tutorial()

	workerTelemetry := s.telemetry()
	client, err := wiggle.Dial(routerURL, wiggle.WithLogger(slog.New(slog.DiscardHandler)),
		wiggle.WithTracerProvider(workerTelemetry.TracerProvider), wiggle.WithAPIKey(s.signIn()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Register(t.Context(), demo.Flow()); err != nil {
		t.Fatal(err)
	}
	l := startLoad(t, client)
	l.await()
	s.say("orders run")

	s.must("./stack", append([]string{"up", "-d", "--no-recreate", "--scale", fmt.Sprintf("instances=%d", scaled)}, s.wanted()...)...)
	s.awaitWell(scaled, "instances")
	s.until(healthyTime, func(ctx context.Context) error { return s.checkProcesses(ctx, scaled) })
	l.await()
	s.say("instances are scaled to %d", scaled)

	for _, service := range slices.Concat(services, beside) {
		s.stopOne(service, l)
	}
	s.say("restarting all of Wiggle's containers one by one")
	s.must("./stack", append([]string{"roll"}, services...)...)
	l.await()

	orders := l.finish()
	if t.Failed() {
		return
	}
	s.say("%d orders were started and completed", orders)
	s.until(searchTime, func(ctx context.Context) error { return checkFound(ctx, client, l.began, orders) })
	s.say("search finds them all")
	s.checkTrace(client, workerTelemetry.TracerProvider)
	s.checkDashboards()
	s.checkGrafana()
}

// wanted lists the services to start: all but Grafana, if its image cannot be had.
func (s *stack) wanted() []string {
	var list []string
	for _, service := range slices.Sorted(strings.FieldsSeq(s.must("./stack", "config", "--services"))) {
		if service != "grafana" || s.grafana {
			list = append(list, service)
		}
	}
	return list
}

// tutorial does what the tutorial does from outside.
func (s *stack) tutorial() {
	s.t.Helper()
	for _, c := range []struct{ program, prints string }{
		{"./cmd/wiggle shards", "instances,home"},
		{"./examples/greeting", "Hello, Ada!"},
	} {
		out := s.must("go", append([]string{"-C", "../..", "run"}, strings.Fields(c.program)...)...)
		if !strings.Contains(out, c.prints) {
			s.t.Errorf("go run %s does not print %q:\n%s", c.program, c.prints, out)
		}
	}
	s.say("the tutorial's commands do what they say")
}

// stopOne stops a container of a service, sees that orders go on, and starts it again. Without its only router nothing goes on, so
// that one comes back at once, and callers wait for it.
func (s *stack) stopOne(service string, l *load) {
	s.t.Helper()
	all, err := s.containers(s.t.Context(), service)
	if err != nil || len(all) == 0 {
		s.t.Fatalf("%s has no container: %v", service, err)
	}
	s.say("stopping %s", all[0].Name)
	s.must("docker", "stop", "-t", "30", all[0].ID)
	if service != "router" {
		l.await()
	}
	s.must("docker", "start", all[0].ID)
	s.awaitWell(len(all), service)
	l.await()
}

// checkProcesses holds that each shard is served by so many processes, as the router sees it.
func (s *stack) checkProcesses(ctx context.Context, want int) error {
	var shards []struct{ Shard, Processes int }
	if err := getJSON(ctx, routerURL+"/readyz/shards", &shards); err != nil {
		return err
	}
	for _, shard := range shards {
		if shard.Processes != want {
			return fmt.Errorf("shard %d is served by %d processes, want %d", shard.Shard, shard.Processes, want)
		}
	}
	if len(shards) != 2 {
		return fmt.Errorf("the router knows %d shards", len(shards))
	}
	return nil
}

// checkFound holds that search finds so many orders as completed.
func checkFound(ctx context.Context, client *wiggle.Client, from time.Time, orders int) error {
	facets, err := client.SearchFacets(ctx, "", wiggle.SearchFilter{
		Workflows: []string{demo.Workflow}, CreatedFrom: from.Add(-time.Second), States: []wiggle.State{wiggle.Completed},
	})
	if err == nil && facets.Total != int64(orders) {
		err = fmt.Errorf("search finds %d completed orders of %d", facets.Total, orders)
	}
	return err
}

// getJSON fetches a document.
func getJSON(ctx context.Context, url string, document any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s, %w: %s", url, res.Status, err, body)
	}
	return json.Unmarshal(body, document)
}
