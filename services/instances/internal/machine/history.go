package machine

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// record appends a history entry; t is nil for what happens to the instance.
func (s *step) record(t *Token, value *wigglev1.HistoryEntry) {
	s.recordSettled(t, NotSettled, value)
}

// recordSettled appends an entry that settles the token's lease.
func (s *step) recordSettled(t *Token, by SettledBy, value *wigglev1.HistoryEntry) {
	value.RecordedAt = timestamppb.New(s.env.Now)
	entry := Entry{Instance: s.in.ID, By: by, Value: value}
	if t == nil {
		entry.Position = s.in.Position
		s.in.Position++
		s.changed = true
	} else {
		entry.Token, entry.Position = t.ID, t.Position
		t.Position++
		value.Node, value.Branch = t.Node, branch(t)
		if !t.Parent.IsZero() {
			value.ParentTokenId = ulid.ULID(t.Parent).String()
		}
		if by != NotSettled {
			entry.Fence = t.Fence
		}
	}
	value.Position, value.Fence = entry.Position, entry.Fence
	s.out.History = append(s.out.History, entry)
}

// branch names the branch a token runs in, for people.
func branch(t *Token) string {
	switch {
	case t.Parent.IsZero():
		return ""
	case t.Key != "":
		return t.Key
	}
	return strconv.Itoa(int(t.Index))
}

// attemptEntry describes an attempt with the times it took (WRK-16).
func (s *step) attemptEntry(
	t *Token, node *definition.Node, kind wigglev1.HistoryKind, started, finished time.Time,
) *wigglev1.HistoryEntry {
	return &wigglev1.HistoryEntry{
		Kind: kind, Step: node.Step.Name, Attempt: t.Attempt, Worker: t.Worker,
		QueuedAt: stamp(t.QueuedAt), DispatchedAt: stamp(t.LeasedAt),
		StartedAt: stamp(started), FinishedAt: stamp(finished),
	}
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Payload refuses a payload over the limit.
func (l Limits) Payload(what string, p Payload) error {
	if len(p.Data) > l.PayloadBytes {
		return &LimitError{Limit: what, Setting: SettingPayloadBytes, Maximum: l.PayloadBytes, Actual: len(p.Data)}
	}
	return nil
}

// cut shortens a payload to what history keeps of it. Text is cut between
// characters.
func (l Limits) cut(p Payload) (*wigglev1.Payload, bool) {
	data, truncated := p.Data, len(p.Data) > l.HistoryBytes
	if truncated {
		end := l.HistoryBytes
		for end > 0 && end > l.HistoryBytes-utf8.UTFMax && !utf8.RuneStart(data[end]) {
			end--
		}
		data = data[:end]
	}
	return &wigglev1.Payload{ContentType: p.ContentType, Data: data}, truncated
}
