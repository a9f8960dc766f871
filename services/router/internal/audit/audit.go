// Package audit brings what the router saw to the audit log: calls that were denied, and operators' actions (AUT-8).
//
// Entries wait in a bounded queue and go in batches. While no auth process answers they wait on. Denied calls that are alike
// are one entry with a count while they wait, so that somebody who tries a thousand keys a second fills no log. What does not
// fit is lost, counted and logged. An entry may be written twice, when the answer to a batch is lost.
package audit

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
)

const (
	// maxWaiting bounds the entries that wait.
	maxWaiting = 10_000
	// maxBatch is how many go at once, as the schema has it.
	maxBatch = 1000
	// gather is how long entries wait for company.
	gather = 500 * time.Millisecond
	// retryPause is the pause while no auth process answers.
	retryPause = 2 * time.Second
	// sendTimeout bounds one batch.
	sendTimeout = 5 * time.Second
	// complainEvery is how often it is logged that entries are lost.
	complainEvery = 10 * time.Second
)

// Sink writes entries. Its errors are *faults.Error.
type Sink interface {
	RecordAudit(context.Context, *wiggleinternalv1.RecordAuditRequest) (*wiggleinternalv1.RecordAuditResponse, error)
}

// alike are the facts in which denied calls are one entry.
type alike struct{ principal, address, action, target, detail string }

// waiting is an entry in the queue.
type waiting struct {
	entry *wigglev1.AuditEntry
	times int
}

// Log is the queue. It is safe for concurrent use.
type Log struct {
	sink   Sink
	logger *slog.Logger
	lost   metric.Int64Counter
	wake   chan struct{}

	mu         sync.Mutex
	queue      []*waiting
	denied     map[alike]*waiting
	dropped    int // since it was last logged
	complained time.Time
}

// New makes a queue. It sends while Run runs.
func New(sink Sink, logger *slog.Logger, meter metric.Meter) (*Log, error) {
	lost, err := meter.Int64Counter("wiggle.auth.audit_lost", metric.WithUnit("{entry}"),
		metric.WithDescription("Entries for the audit log that were lost because too many waited, or were refused."))
	if err != nil {
		return nil, err
	}
	return &Log{sink: sink, logger: logger, lost: lost, wake: make(chan struct{}, 1), denied: map[alike]*waiting{}}, nil
}

// Record adds an entry, which is the queue's from now on. It does not block.
func (l *Log) Record(entry *wigglev1.AuditEntry) {
	for _, text := range []*string{&entry.Target, &entry.Detail, &entry.Address} {
		if !utf8.ValidString(*text) {
			*text = fmt.Sprintf("%+q", *text)
		}
	}
	entry.At = timestamppb.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	key := alike{entry.GetPrincipal(), entry.GetAddress(), entry.GetAction(), entry.GetTarget(), entry.GetDetail()}
	if same := l.denied[key]; same != nil && !entry.GetAllowed() {
		same.times++
		return
	}
	if len(l.queue) == maxWaiting {
		l.drop(1)
		return
	}
	w := &waiting{entry: entry, times: 1}
	l.queue = append(l.queue, w)
	if !entry.GetAllowed() {
		l.denied[key] = w
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// drop counts entries that are lost, and says so loudly. The mutex is held.
func (l *Log) drop(n int) {
	l.lost.Add(context.Background(), int64(n))
	l.dropped += n
	if now := time.Now(); now.Sub(l.complained) >= complainEvery {
		l.logger.Error("entries for the audit log are lost: more wait than are kept while no auth process takes them",
			slog.Int("lost", l.dropped), slog.Int("waiting", len(l.queue)))
		l.dropped, l.complained = 0, now
	}
}

// Run sends until ctx is done, and then what is left, within the time of the drain.
func (l *Log) Run(ctx context.Context) error {
	for pause.For(ctx, time.Minute, l.wake) {
		if !pause.For(ctx, gather, nil) {
			break
		}
		for l.send(ctx) == nil && l.left() > 0 { //nolint:revive // each turn sends a batch
		}
		if l.left() > 0 && ctx.Err() == nil {
			pause.For(ctx, pause.Jitter(retryPause), nil)
			l.signal()
		}
	}
	return l.flush(lifecycle.DrainContext(ctx))
}

// flush sends what is left until it is sent or the first failure: nobody waits for an auth process on the way down.
func (l *Log) flush(ctx context.Context) error {
	for l.left() > 0 {
		if err := l.send(ctx); err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			n := len(l.queue)
			l.lost.Add(ctx, int64(n))
			l.logger.ErrorContext(ctx, "entries for the audit log are lost: this router stops, and no auth process takes them",
				slog.Int("lost", n), slog.Any("error", err))
			return nil
		}
	}
	return nil
}

func (l *Log) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *Log) left() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// send sends one batch. It stays at the head of the queue until it is taken. One that is refused for what it is would be
// refused for ever, and is lost.
func (l *Log) send(ctx context.Context) error {
	l.mu.Lock()
	batch := l.queue[:min(len(l.queue), maxBatch)]
	entries := make([]*wigglev1.AuditEntry, len(batch))
	for i, w := range batch {
		entries[i] = w.entry
		if w.times > 1 {
			entries[i].Detail = fmt.Sprintf("%s (%d times)", w.entry.GetDetail(), w.times)
			w.times = 1 // it is said; the batch may be sent again
		}
	}
	clear(l.denied) // what comes from now on is counted anew
	l.mu.Unlock()
	if len(entries) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	_, err := l.sink.RecordAudit(ctx, &wiggleinternalv1.RecordAuditRequest{Entries: entries})
	l.mu.Lock()
	defer l.mu.Unlock()
	refused := faults.CodeOf(err) == faults.CodeInvalidArgument
	if err != nil && !refused {
		return err
	}
	l.queue = append([]*waiting(nil), l.queue[len(entries):]...)
	if refused {
		l.logger.ErrorContext(ctx, "the auth service refuses entries of the audit log", slog.Any("error", err))
		l.drop(len(entries))
	}
	return nil
}
