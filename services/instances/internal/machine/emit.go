package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Types of the events that the engine writes (EVT-1). Handlers emit none that begin
// with [EventPrefix].
const (
	EventPrefix    = "wf."
	EventStarted   = EventPrefix + "started"
	EventCompleted = EventPrefix + "completed"
	EventFailed    = EventPrefix + "failed"
	EventCancelled = EventPrefix + "cancelled"
)

// Event is one entry for the event log. What it is about is the instance of the
// changes that hold it.
type Event struct {
	Type string
	// Node is whose handler emitted it; empty for what became of the instance.
	Node string
	// Payload is a JSON object; nil for what became of the instance.
	Payload []byte
	// Revision is the instance's Position after the change.
	Revision int32
}

// Emitted is what a handler adds to the event log. An absent payload is an empty object.
type Emitted struct {
	Type    string
	Payload Payload
}

// What bounds the events of one step, beside [Limits].
const (
	maxEmitted   = 100
	maxEventType = 128
)

// EmitError tells why what a handler emitted is not taken. Nothing of its report is
// applied then.
type EmitError struct {
	// Type is what was emitted, Reason why it is refused.
	Type, Reason string
}

// Error names the event and what is wrong with it.
func (e *EmitError) Error() string {
	return fmt.Sprintf("the event %.140q %s", e.Type, e.Reason)
}

// emitted refuses what cannot be an event.
func (l Limits) emitted(events []Emitted) error {
	if n := len(events); n > maxEmitted {
		return &EmitError{
			Type: events[maxEmitted].Type, Reason: fmt.Sprintf("is one of %d of its step, at most %d are allowed", n, maxEmitted),
		}
	}
	for i := range events {
		if err := l.event(&events[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l Limits) event(e *Emitted) error {
	reason := ""
	switch {
	case strings.HasPrefix(e.Type, EventPrefix):
		reason = "is the engine's own: types that begin with \"wf.\" cannot be emitted"
	case !isEventType(e.Type):
		reason = fmt.Sprintf("is no type of an event: want 1 to %d letters, digits, '.', '_' and '-', the first a letter or digit",
			maxEventType)
	case len(e.Payload.Data) > l.EventBytes:
		return &LimitError{Limit: "event", Setting: SettingEventBytes, Maximum: l.EventBytes, Actual: len(e.Payload.Data)}
	case e.Payload.Absent():
	case !e.Payload.IsJSON():
		reason = fmt.Sprintf("has a payload of %.40q, want a JSON object", e.Payload.ContentType)
	case !isObject(e.Payload.Data):
		reason = "has a payload that is no JSON object"
	}
	if reason == "" {
		return nil
	}
	return &EmitError{Type: e.Type, Reason: reason}
}

func isEventType(text string) bool {
	if text == "" || len(text) > maxEventType {
		return false
	}
	for i := range len(text) {
		switch c := text[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// isObject tells whether a value is a JSON object, without taking it apart.
func isObject(data []byte) bool {
	text := bytes.TrimLeft(data, " \t\r\n")
	return len(text) > 0 && text[0] == '{' && json.Valid(data)
}

// log appends what became of the instance to the event log.
func (s *step) log(kind string) {
	s.out.Events = append(s.out.Events, Event{Type: kind})
}

// emit appends what a node's handler emitted to the event log.
func (s *step) emit(node string, events []Emitted) {
	for _, e := range events {
		data := e.Payload.Data
		if data == nil {
			data = []byte("{}")
		}
		s.out.Events = append(s.out.Events, Event{Type: e.Type, Node: node, Payload: data})
	}
}
