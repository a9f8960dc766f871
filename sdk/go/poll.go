package wiggle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// pollRetries paces polls that fail, for ever: there is nothing else to do.
var pollRetries = retries{first: 100 * time.Millisecond, longest: 10 * time.Second}

const (
	// pollMargin is what the answer to a poll may take beyond its wait.
	pollMargin = 15 * time.Second
	// A server that answers before quickAnswer with nothing to say, though it was
	// asked to wait, is asked again only after a quickPause.
	quickAnswer = time.Second
	quickPause  = 100 * time.Millisecond
)

// pollLoop polls while there is room, until ctx is done. Tasks live on in work.
func (s *session) pollLoop(ctx, work context.Context) {
	opts := s.w.opts
	req := &wigglev1.PollTasksRequest{
		Namespace: s.w.client.namespace, Worker: opts.Name, Queues: opts.Queues, Workflows: s.w.bindings(),
		Lease: durationpb.New(opts.Lease), Wait: durationpb.New(opts.PollWait), ShareBaseContexts: true,
	}
	health := health{logger: s.w.logger, what: "poll"}
	for failures := 0; ; {
		room := s.awaitRoom(ctx)
		if room == 0 {
			return
		}
		req.MaxTasks = toInt32(room)
		pause, err := s.poll(ctx, work, req)
		if ctx.Err() != nil {
			return
		}
		health.note(ctx, err)
		if err != nil {
			failures++
			pause = max(pause, pollRetries.pause(failures))
		} else {
			failures = 0
		}
		if pause > 0 && sleep(ctx, pause) != nil {
			return
		}
	}
}

// poll makes one poll and returns how long to wait before the next.
func (s *session) poll(ctx, work context.Context, req *wigglev1.PollTasksRequest) (time.Duration, error) {
	begin := time.Now()
	res, err := once(ctx, s.w.opts.PollWait+pollMargin, s.w.client.workers.PollTasks, req)
	if err != nil {
		err = toError("poll", err)
		var e *Error
		errors.As(err, &e)
		return jittered(e.RetryAfter), err
	}
	s.acceptAll(work, res.GetTasks(), res.GetBaseContexts())
	if after := res.GetRetryAfter().AsDuration(); after > 0 {
		return jittered(after), nil
	}
	if len(res.GetTasks()) == 0 && time.Since(begin) < quickAnswer {
		return jittered(quickPause), nil
	}
	return 0, nil
}

// awaitRoom waits until there is room for a task, 0 when ctx is done.
func (s *session) awaitRoom(ctx context.Context) int {
	for {
		if ctx.Err() != nil {
			return 0
		}
		if room := s.room(); room > 0 {
			return room
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
		}
	}
}

// health logs when something begins to fail and when it is well again, not each
// time.
type health struct {
	logger *slog.Logger
	what   string // the call
	sick   bool
	since  time.Time
}

func (h *health) note(ctx context.Context, err error) {
	switch {
	case err != nil && !h.sick:
		h.sick, h.since = true, time.Now()
		h.logger.LogAttrs(ctx, slog.LevelWarn, "wiggle: calls fail and will be tried again",
			slog.String("call", h.what), slog.Any("error", err))
	case err == nil && h.sick:
		h.sick = false
		h.logger.LogAttrs(ctx, slog.LevelInfo, "wiggle: calls are answered again",
			slog.String("call", h.what), slog.Duration("after", time.Since(h.since)))
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
