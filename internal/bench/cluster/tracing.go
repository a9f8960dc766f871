package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// collector stands where spans are exported to: it counts them by their bytes and forgets them, so that what is measured is the
// cost of making and sending them.
type collector struct {
	url    string
	server *http.Server
	done   chan struct{}

	requests, bytes atomic.Int64
}

const collectorHeaderTime = 5 * time.Second

// startCollector listens on a port of this machine.
func startCollector(ctx context.Context) (*collector, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for spans: %w", err)
	}
	c := &collector{url: "http://" + l.Addr().String() + "/v1/traces", done: make(chan struct{})}
	c.server = &http.Server{Handler: http.HandlerFunc(c.take), ReadHeaderTimeout: collectorHeaderTime}
	go func() {
		defer close(c.done)
		_ = c.server.Serve(l)
	}()
	return c, nil
}

func (c *collector) take(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return // the sender has gone
	}
	c.requests.Add(1)
	c.bytes.Add(n)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// environment has services export their spans here, and sample this part of the traces that no caller has begun.
func (c *collector) environment(ratio float64) []string {
	return []string{
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + c.url, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf",
		"OTEL_BSP_SCHEDULE_DELAY=500", "OTEL_TRACES_SAMPLER=parentbased_traceidratio",
		"OTEL_TRACES_SAMPLER_ARG=" + strconv.FormatFloat(ratio, 'f', -1, 64),
	}
}

func (c *collector) close() {
	_ = c.server.Close()
	<-c.done
}

// errNoSpans tells that tracing was asked for and nothing came: what was measured was not it.
var errNoSpans = errors.New("the services exported no span, though --trace asked for them")

// Traced is how many bytes of spans came, 0 where none were asked for.
func (c *Cluster) Traced() (bytes int64, err error) {
	if c.collector == nil {
		return 0, nil
	}
	if c.collector.requests.Load() == 0 {
		return 0, errNoSpans
	}
	return c.collector.bytes.Load(), nil
}

// telemetrySetting tells whether a variable of the environment is about telemetry, which is the bench's to decide where it
// traces.
func telemetrySetting(name string) bool { return strings.HasPrefix(name, "OTEL_") }
