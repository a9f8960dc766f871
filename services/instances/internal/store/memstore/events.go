package memstore

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// eventLog is the event log of the shard and who follows it.
type eventLog struct {
	entries   []store.StoredEvent
	last      int64
	consumers map[string]store.EventConsumer
}

func (l *eventLog) append(now time.Time, e store.LogEntry) {
	l.last++
	in := e.Instance
	l.entries = append(l.entries, store.StoredEvent{
		Seq: l.last, Instance: in.ID, Revision: e.Revision, Version: in.Version, Namespace: in.Namespace, Workflow: in.Workflow,
		Type: e.Type, Node: e.Node, Time: now, Payload: e.Payload, Trace: e.Trace,
	})
}

// behind is the index of the first entry behind a number.
func (l *eventLog) behind(seq int64) int {
	i, _ := slices.BinarySearchFunc(l.entries, seq+1, func(e store.StoredEvent, seq int64) int { return cmp.Compare(e.Seq, seq) })
	return i
}

// bounds are the numbers behind which the log ends and its first entry is.
func (l *eventLog) bounds() (tail, earliest int64) {
	if n := len(l.entries); n > 0 {
		return l.entries[n-1].Seq, l.entries[0].Seq - 1
	}
	return 0, 0
}

// onEvents runs do on the event log.
func (s *Store) onEvents(ctx context.Context, do func(l *eventLog) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return do(&s.events)
}

// ReadEvents implements [store.Events].
func (s *Store) ReadEvents(ctx context.Context, after int64, limit int) (page store.EventPage, err error) {
	err = s.onEvents(ctx, func(l *eventLog) error {
		found := l.entries[l.behind(after):]
		page = store.EventPage{Events: slices.Clone(found[:min(limit, len(found))]), UpTo: min(after, l.last), More: len(found) >= limit}
		if n := len(page.Events); n > 0 {
			page.UpTo = page.Events[n-1].Seq
		}
		return nil
	})
	return page, err
}

// DecidedEvents implements [store.Events].
func (s *Store) DecidedEvents(ctx context.Context) (seq int64, open bool, err error) {
	err = s.onEvents(ctx, func(l *eventLog) error {
		seq = l.last
		return nil
	})
	return seq, false, err
}

// EventBounds implements [store.Events].
func (s *Store) EventBounds(ctx context.Context) (tail, earliest int64, err error) {
	err = s.onEvents(ctx, func(l *eventLog) error {
		tail, earliest = l.bounds()
		return nil
	})
	return tail, earliest, err
}

// EventConsumer implements [store.Events].
func (s *Store) EventConsumer(ctx context.Context, name string) (seq int64, err error) {
	err = s.onEvents(ctx, func(l *eventLog) error {
		c, ok := l.consumers[name]
		if !ok {
			return store.ErrNotFound
		}
		seq = c.Seq
		return nil
	})
	return seq, err
}

// AddEventConsumer implements [store.Events].
func (s *Store) AddEventConsumer(ctx context.Context, name string, seq int64) (int64, error) {
	err := s.onEvents(ctx, func(l *eventLog) error {
		c, ok := l.consumers[name]
		if !ok {
			c = store.EventConsumer{Name: name, Seq: seq, AckedAt: s.now()}
			l.consumers[name] = c
		}
		seq = c.Seq
		return nil
	})
	return seq, err
}

// AckEvents implements [store.Events].
func (s *Store) AckEvents(ctx context.Context, name string, seq int64) error {
	return s.onEvents(ctx, func(l *eventLog) error {
		seq = min(seq, l.last)
		if c, ok := l.consumers[name]; !ok || c.Seq < seq {
			l.consumers[name] = store.EventConsumer{Name: name, Seq: seq, AckedAt: s.now()}
		}
		return nil
	})
}

// EventConsumers implements [store.Events]. Nothing relays what is in memory.
func (s *Store) EventConsumers(ctx context.Context) (list []store.EventConsumer, err error) {
	err = s.onEvents(ctx, func(l *eventLog) error {
		tail, earliest := l.bounds()
		for _, c := range l.consumers {
			c.Behind = max(tail-max(c.Seq, earliest), 0)
			list = append(list, c)
		}
		slices.SortFunc(list, func(a, b store.EventConsumer) int { return strings.Compare(a.Name, b.Name) })
		return nil
	})
	return list, err
}

// DeleteEventConsumer implements [store.Events].
func (s *Store) DeleteEventConsumer(ctx context.Context, name string) error {
	return s.onEvents(ctx, func(l *eventLog) error {
		delete(l.consumers, name)
		return nil
	})
}

// EventsSize implements [store.Events].
func (s *Store) EventsSize(ctx context.Context) (size store.EventsSize, err error) {
	err = s.onEvents(ctx, func(l *eventLog) error {
		if len(l.entries) > 0 {
			tail, earliest := l.bounds()
			size = store.EventsSize{Entries: tail - earliest, Oldest: s.now().Sub(l.entries[0].Time)}
		}
		return nil
	})
	return size, err
}

// TrimEvents implements [store.Events].
func (s *Store) TrimEvents(ctx context.Context, t store.TrimEvents) (out store.TrimmedEvents, err error) {
	err = s.onEvents(ctx, func(l *eventLog) error {
		passed, now := l.last, s.now()
		for _, c := range l.consumers {
			passed = min(passed, c.Seq)
		}
		looked := l.entries[l.behind(t.After):]
		looked = looked[:min(t.Limit, len(looked))]
		keep := slices.IndexFunc(looked, func(e store.StoredEvent) bool {
			age := now.Sub(e.Time)
			return (age <= t.Retention || e.Seq > passed) && age <= t.HardCap
		})
		out = store.TrimmedEvents{UpTo: t.After, Deleted: len(looked), More: keep < 0 && len(looked) == t.Limit}
		if keep >= 0 {
			out.Deleted = keep
		}
		if out.Deleted > 0 {
			out.UpTo = looked[out.Deleted-1].Seq
			l.entries = slices.Clone(l.entries[l.behind(out.UpTo):])
		}
		return nil
	})
	return out, err
}
