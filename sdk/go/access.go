package wiggle

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// access logs when the server begins to refuse a worker for who it is or what it may
// do, and when it lets it in again: once, though each loop of the worker finds out by
// itself. The worker goes on asking, as its key may be given back or replaced.
//
//	let in --a call is refused--> barred --every such call is answered--> let in
type access struct {
	logger *slog.Logger
	keyed  bool // the worker shows a key

	mu     sync.Mutex
	barred map[string]struct{} // calls
	since  time.Time
}

func newAccess(logger *slog.Logger, keyed bool) *access {
	return &access{logger: logger, keyed: keyed, barred: map[string]struct{}{}}
}

// note takes in what came of a call and tells whether that was a refusal.
func (a *access) note(ctx context.Context, call string, err error) bool {
	unknown, denied := errors.Is(err, ErrUnauthenticated), errors.Is(err, ErrPermissionDenied)
	if err != nil && !unknown && !denied {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.barred)
	if err == nil {
		delete(a.barred, call)
		if before > 0 && len(a.barred) == 0 {
			a.logger.LogAttrs(ctx, slog.LevelInfo, "wiggle: the server lets the worker in again",
				slog.Duration("after", time.Since(a.since)))
		}
		return false
	}
	a.barred[call] = struct{}{}
	if before == 0 {
		a.since = time.Now()
		a.tell(ctx, denied, slog.String("call", call), slog.Any("error", err))
	}
	return true
}

// tell says what is wrong and the way out.
func (a *access) tell(ctx context.Context, denied bool, attrs ...slog.Attr) {
	switch {
	case denied:
		a.logger.LogAttrs(ctx, slog.LevelError,
			"wiggle: the worker may not do what it asks for: give its key a role that allows it; it goes on trying", attrs...)
	case a.keyed:
		a.logger.LogAttrs(ctx, slog.LevelError, "wiggle: the server does not accept the worker's API key: it was revoked, has expired, "+
			"or is another cluster's; make it another (wiggle keys create NAME --role worker): one in "+envAPIKeyFile+
			" is read by itself, one in "+envAPIKey+" needs a restart; the worker goes on trying", attrs...)
	default:
		a.logger.LogAttrs(ctx, slog.LevelError, "wiggle: the server takes no calls without an API key, and the worker has none: set "+
			envAPIKey+" or "+envAPIKeyFile+" and start it again", attrs...)
	}
}
