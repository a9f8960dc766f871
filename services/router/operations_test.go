package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/grpchealth"
	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router"
)

func TestReadiness(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		if code, body := c.get("/readyz"); code != 200 {
			t.Errorf("got %d %s", code, body)
		}
		c.databases[2].update(func() { c.databases[2].down = "the database does not answer" })
		c.kill("p1")
		time.Sleep(time.Second)
		if code, body := c.get("/readyz"); code != 503 || !strings.Contains(body, "shard 1: no process serves it") ||
			!strings.Contains(body, "shard 2: the database does not answer") {
			t.Errorf("just started: got %d %s", code, body)
		}
		for shard, want := range map[int]grpchealth.Status{0: grpchealth.StatusServing, 1: grpchealth.StatusNotServing, 2: grpchealth.StatusNotServing} {
			if got := c.health(rpc.HealthOfShard(shard)); got != want {
				t.Errorf("health of shard %d is %v", shard, got)
			}
		}
		time.Sleep(10 * time.Second)
		if code, body := c.get("/readyz"); code != 200 {
			t.Errorf("two shards of three are down: got %d %s", code, body)
		}
		if _, body := c.get("/readyz/shards"); !strings.Contains(body, `{"shard":1,"ready":false,"reason":"no process serves it"`) {
			t.Errorf("got %s", body)
		}
		c.kill("p0")
		time.Sleep(time.Second)
		if code, _ := c.get("/readyz"); code != 503 {
			t.Errorf("all are down: got %d", code)
		}
	})
}

// A shard that is added is routed to at once; what the present topology does not allow is refused.
func TestSetTopology(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0, 1, 2}}, func(c *cluster) {
		t := c.t
		four := strings.Replace(threeShards, `{"id": 9,`, `{"id": 3, "state": "active", "roles": ["instances"], "primary": {"url": "postgres://s3/w"}}, {"id": 9,`, 1)
		c.databases[3] = newDatabase(3)
		id := shardid.NewInstance(3, ulid.Make()).String()
		c.databases[3].instances[id] = &wigglev1.Instance{Id: id}
		c.startProcess("b", 3)
		time.Sleep(time.Second)
		get := func() error {
			_, err := c.instances.GetInstance(t.Context(), &wigglev1.GetInstanceRequest{InstanceId: id})
			return err
		}
		if err := get(); !errors.Is(err, faults.ErrShardUnknown) {
			t.Errorf("before: %v", err)
		}
		if err := c.router.SetTopology(parse(t, four)); err != nil {
			t.Fatal(err)
		}
		if err := get(); err != nil {
			t.Errorf("after: %v", err)
		}
		if err := c.router.SetTopology(parse(t, threeShards)); err == nil {
			t.Error("a shard that is not retired was left out")
		}
	}, func(cfg *router.Config) {
		cfg.InstancesURLs = append(cfg.InstancesURLs, "http://b")
	})
}

// Processes come and go behind a host name.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	addresses := []string{"a"}
	inBubble(t, map[string][]int{"a": {0, 1, 2}}, func(c *cluster) {
		t := c.t
		id := c.start(1)
		c.startProcess("b", 0, 1, 2)
		mu.Lock()
		addresses = []string{"b"}
		mu.Unlock()
		time.Sleep(3 * time.Second)
		c.kill("a")
		if _, err := c.instances.GetInstance(t.Context(), &wigglev1.GetInstanceRequest{InstanceId: id}); err != nil {
			t.Error(err)
		}
	}, func(cfg *router.Config) {
		cfg.InstancesURLs = []string{"dns+http://instances"}
		cfg.LookupHost = func(context.Context, string) ([]string, error) {
			mu.Lock()
			defer mu.Unlock()
			return addresses, nil
		}
	})
}

// health asks the gRPC health service.
func (c *cluster) health(service string) grpchealth.Status {
	c.t.Helper()
	body := strings.NewReader(fmt.Sprintf(`{"service": %q}`, service))
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "http://router/grpc.health.v1.Health/Check", body)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct{ Status string }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		c.t.Fatal(err)
	}
	return map[string]grpchealth.Status{
		"SERVING_STATUS_SERVING": grpchealth.StatusServing, "SERVING_STATUS_NOT_SERVING": grpchealth.StatusNotServing,
	}[answer.Status]
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.start(1)
		c.poll(t.Context(), waiting("q"))
		var data metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &data); err != nil {
			t.Fatal(err)
		}
		starts, parked := int64(0), int64(0)
		for _, scope := range data.ScopeMetrics {
			for _, m := range scope.Metrics {
				sum, ok := m.Data.(metricdata.Sum[int64])
				if !ok {
					continue
				}
				for _, p := range sum.DataPoints {
					method, _ := p.Attributes.Value("method")
					shard, _ := p.Attributes.Value("shard")
					switch {
					case m.Name == "wiggle.router.calls" && method.AsString() == "StartInstances" && shard.AsInt64() == 1:
						starts = p.Value
					case m.Name == "wiggle.router.parked_polls":
						parked = p.Value
					}
				}
			}
		}
		if starts != 1 || parked != 1 {
			t.Errorf("%d starts on shard 1, %d parked polls", starts, parked)
		}
	}, func(cfg *router.Config) {
		cfg.Telemetry.MeterProvider = metric.NewMeterProvider(metric.WithReader(reader))
	})
}
