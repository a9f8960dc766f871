package instances_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/services/instances"
)

const serviceKey = "WIGGLE_SERVICE_KEY=key-of-this-cluster-key-of-this-cluster"

func TestMainRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	database := "WIGGLE_DATABASE_URL=postgres://127.0.0.1:1/w"
	for want, environ := range map[string][]string{
		"WIGGLE_CELL_ID: is a setting of the coordinator":               {database, "WIGGLE_CELL_ID=1"},
		"did you mean WIGGLE_INSTANCES_ADDR?":                           {database, "WIGGLE_INSTANCE_ADDR=x"},
		"WIGGLE_INSTANCES_LANES: is 0":                                  {database, "WIGGLE_INSTANCES_LANES=0"},
		`WIGGLE_INSTANCES_SHARDS: has "a", which is not a whole number`: {database, "WIGGLE_INSTANCES_SHARDS=a"},
		"WIGGLE_INSTANCES_SHARDS: names shard 4":                        {database, "WIGGLE_INSTANCES_SHARDS=4"},
		"less than WIGGLE_EVENTS_RETENTION":                             {database, "WIGGLE_EVENTS_RETENTION=48h", "WIGGLE_EVENTS_HARD_CAP=24h"},
		"WIGGLE_EVENTS_RETENTION: is 1s":                                {database, "WIGGLE_EVENTS_RETENTION=1s"},
		"WIGGLE_LIMIT_EVENT_BYTES: is ":                                 {database, "WIGGLE_LIMIT_EVENT_BYTES=10MiB"},
		"WIGGLE_DATABASE_URL: is not set":                               nil,
		"WIGGLE_INSTANCES_ADDR: listen":                                 {database, serviceKey, "WIGGLE_INSTANCES_ADDR=nowhere"},
		"WIGGLE_SERVICE_KEY: is not set":                                {database},
	} {
		if err := instances.Main(t.Context(), append(environ, "WIGGLE_LOG_LEVEL=error")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestServesUntilStopped(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- instances.Main(ctx, []string{
			"WIGGLE_DATABASE_URL=" + pgtest.NewDatabase(t), serviceKey, "WIGGLE_INSTANCES_ADDR=" + addr, "WIGGLE_LOG_LEVEL=error",
			"WIGGLE_ROUTER_ADDR=:1", "WIGGLE_SERVER=http://x", // others' settings, in an environment that all share
		})
	}()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			break
		}
		select {
		case err := <-done:
			t.Fatal(err)
		case <-poll.C:
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
