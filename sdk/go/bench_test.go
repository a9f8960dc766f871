package wiggle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// BenchmarkWorker runs steps of an empty handler over a socket against a server in
// this process that knows nothing but to answer: what the ways of task and report of
// a step cost both sides, less the server's work. A commit of the server answers all
// that came before it and takes so long.
func BenchmarkWorker(b *testing.B) {
	for _, bench := range []struct {
		name        string
		unary       bool
		concurrency int
		commit      time.Duration
	}{
		{"stream", false, 200, 0},
		{"unary", true, 200, 0},
		{"stream/commit=2ms", false, 200, 2 * time.Millisecond},
		{"unary/commit=2ms", true, 200, 2 * time.Millisecond},
		{"stream/one", false, 1, 0},
		{"unary/one", true, 1, 0},
	} {
		b.Run(bench.name, func(b *testing.B) {
			benchmarkWorker(b, &benchServer{commit: bench.commit, left: b.N, done: make(chan struct{})},
				wiggle.WorkerOptions{SkipCheck: true, Concurrency: bench.concurrency, Unary: bench.unary})
		})
	}
}

func benchmarkWorker(b *testing.B, s *benchServer, opts wiggle.WorkerOptions) {
	mux := http.NewServeMux()
	mux.Handle(wigglev1connect.NewWorkerServiceHandler(s))
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	defer srv.Close()
	c, err := wiggle.Dial(srv.URL, wiggle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	w := wiggle.NewWorker(c, opts)
	wiggle.HandleTask(w, "work", func(_ context.Context, in wiggle.Payload) (wiggle.Payload, error) { return in, nil })
	ctx, cancel := context.WithCancel(b.Context())
	stopped := make(chan error, 1)
	b.ReportAllocs()
	cpu := cpuTime(b)
	b.ResetTimer()
	go func() { stopped <- w.Run(ctx) }()
	<-s.done
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/float64(b.N), "cpu-µs/step")
	b.ReportMetric(float64(s.messages)/float64(b.N), "messages/step")
	cancel()
	if err := <-stopped; err != nil {
		b.Fatal(err)
	}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchServer hands out so many tasks, each in the place of one that was reported.
type benchServer struct {
	wigglev1connect.UnimplementedWorkerServiceHandler

	commit time.Duration
	done   chan struct{}

	mu       sync.Mutex
	next     int
	left     int // to be reported
	messages int
}

// tasks makes tasks for so much room.
func (s *benchServer) tasks(room int) []*wigglev1.Task {
	now := timestamppb.Now()
	expires := timestamppb.New(now.AsTime().Add(30 * time.Second))
	out := make([]*wigglev1.Task, 0, room)
	s.mu.Lock()
	defer s.mu.Unlock()
	for range room {
		s.next++
		out = append(out, &wigglev1.Task{
			Id: "tok.s0.01k6abcdefghjkmnpqrstvwx" + strconv.Itoa(s.next), Lease: "1/" + strconv.Itoa(s.next),
			InstanceId: "wfi.s0.01k6abcdefghjkmnpqrstvwxyz", Namespace: "default", Workflow: "chain", Version: 1, Node: "n1", Step: "work",
			Activity: "work", Kind: wigglev1.TaskKind_TASK_KIND_TASK, Attempt: 1, Queue: "default",
			LeaseExpiresAt: expires, QueuedAt: now, DispatchedAt: now, Context: data(fmt.Sprintf("%0200d", s.next)),
		})
	}
	return out
}

func (s *benchServer) settled(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages++
	if s.left > 0 && s.left <= n {
		close(s.done)
	}
	s.left -= n
}

func (s *benchServer) PollTasks(ctx context.Context, req *wigglev1.PollTasksRequest) (*wigglev1.PollTasksResponse, error) {
	s.mu.Lock()
	first := s.next == 0
	s.mu.Unlock()
	if first {
		return &wigglev1.PollTasksResponse{Tasks: s.tasks(int(req.GetMaxTasks()))}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *benchServer) ReportSteps(_ context.Context, req *wigglev1.ReportStepsRequest) (*wigglev1.ReportStepsResponse, error) {
	res := &wigglev1.ReportStepsResponse{}
	for _, r := range req.GetReports() {
		res.Outcomes = append(res.Outcomes, &wigglev1.TaskOutcome{TaskId: r.GetTaskId()})
	}
	if s.commit > 0 {
		<-time.After(s.commit)
	}
	s.settled(len(req.GetReports()))
	if req.GetNext() != nil {
		res.Tasks = s.tasks(len(req.GetReports()))
	}
	return res, nil
}

func (s *benchServer) Work(_ context.Context, stream *connect.BidiStream[wigglev1.WorkRequest, wigglev1.WorkResponse]) error {
	requests := make(chan *wigglev1.WorkRequest, 1000)
	go func() {
		defer close(requests)
		for {
			req, err := stream.Receive()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					panic(err)
				}
				return
			}
			requests <- req
		}
	}()
	for req := range requests {
		res, n := &wigglev1.WorkResponse{}, int32(0)
		if s.commit > 0 {
			<-time.After(s.commit)
		}
		for waiting := len(requests); ; waiting-- {
			n += req.GetCredits()
			res.Revoked += req.GetRevoke()
			for _, r := range req.GetReports() {
				res.Reported = append(res.Reported, &wigglev1.TaskOutcome{TaskId: r.GetTaskId(), Lease: r.GetLease()})
			}
			s.settled(len(req.GetReports()))
			if waiting <= 0 {
				break
			}
			req = <-requests
		}
		res.Tasks = s.tasks(int(n))
		if err := stream.Send(res); err != nil {
			return err
		}
	}
	return nil
}
