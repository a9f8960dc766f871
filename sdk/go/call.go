package wiggle

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"
)

// retries says how an idempotent call is repeated.
type retries struct {
	attempts       int
	first, longest time.Duration
}

// pollRetries paces attempts to get work that fail, for ever: there is nothing else to do.
var pollRetries = retries{first: 100 * time.Millisecond, longest: 10 * time.Second}

// call makes an idempotent call, again where trying again may help. Each attempt
// may take as long as timeout (0: as ctx allows).
func call[Req, Res any](
	ctx context.Context, c *Client, op string, timeout time.Duration,
	do func(context.Context, *Req) (*Res, error), req *Req,
) (*Res, error) {
	for attempt := 1; ; attempt++ {
		res, err := once(ctx, timeout, do, req)
		if err == nil {
			return res, nil
		}
		werr := toError(op, err)
		pause, again := c.retries.next(ctx, attempt, werr)
		if !again {
			return nil, werr
		}
		c.logger.LogAttrs(ctx, slog.LevelDebug, "wiggle: a call will be repeated",
			slog.String("op", op), slog.Int("attempt", attempt), slog.Duration("pause", pause), slog.Any("error", werr))
		if err := sleep(ctx, pause); err != nil {
			return nil, werr
		}
	}
}

func once[Req, Res any](
	ctx context.Context, timeout time.Duration, do func(context.Context, *Req) (*Res, error), req *Req,
) (*Res, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return do(ctx, req)
}

// next tells whether to try again after so many attempts, and after which pause.
func (r retries) next(ctx context.Context, attempt int, err error) (time.Duration, bool) {
	if attempt >= r.attempts || ctx.Err() != nil {
		return 0, false
	}
	var e *Error
	if !errors.As(err, &e) || !e.retryable() {
		return 0, false
	}
	return max(r.pause(attempt), jittered(e.RetryAfter)), true
}

// pause is the backoff after so many failures in a row, from 1.
func (r retries) pause(failures int) time.Duration {
	d := r.first
	for range failures - 1 {
		if d >= r.longest {
			break
		}
		d *= 2
	}
	return jittered(min(d, r.longest))
}

// jittered is a time from 0.8 to 1.2 of d, so that many clients that failed at
// once do not come back at once.
func jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64())) //nolint:gosec // nobody gains by guessing it
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// health logs when something begins to fail and when it is well again, not each
// time.
type health struct {
	logger *slog.Logger
	what   string  // the call
	access *access // of a worker; nil: of none
	sick   bool
	since  time.Time
}

func (h *health) note(ctx context.Context, err error) {
	if h.access != nil && h.access.note(ctx, h.what, err) {
		return
	}
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
