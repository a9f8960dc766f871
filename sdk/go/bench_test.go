package wiggle_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// BenchmarkWorker runs steps of an empty handler against the fake over a socket, both
// in this process: what poll, handler and report of a step cost, less the server's
// work.
func BenchmarkWorker(b *testing.B) {
	f := newFake()
	mux := http.NewServeMux()
	mux.Handle(wigglev1connect.NewWorkerServiceHandler(f))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	c, err := wiggle.Dial(srv.URL, wiggle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	w := wiggle.NewWorker(c, wiggle.WorkerOptions{SkipCheck: true, Concurrency: 200})
	wiggle.HandleTask(w, "work", func(_ context.Context, in order) (order, error) { return in, nil })
	done := make(chan struct{}, b.N)
	f.onReport = func(*wigglev1.StepReport) *wigglev1.Fault { done <- struct{}{}; return nil }
	for i := range b.N {
		f.push(&wigglev1.Task{Id: fmt.Sprint(i), Step: "work", Context: data(`{"id":1}`)})
	}
	ctx, cancel := context.WithCancel(b.Context())
	stopped := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() { stopped <- w.Run(ctx) }()
	for range b.N {
		<-done
	}
	b.StopTimer()
	cancel()
	if err := <-stopped; err != nil {
		b.Fatal(err)
	}
}
