package bus

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Event is an entry of a shard's event log as it travels.
type Event struct {
	// Shard and Seq name the entry.
	Shard int
	Seq   int64
	// Instance is the instance's id.
	Instance string
	// Revision is the instance's when the entry was written.
	Revision            int32
	Namespace, Workflow string
	Version             int32
	Key, Type, Node     string
	// Time is when it was written, by the clock of the shard, to the microsecond.
	Time time.Time
	// Payload is a JSON object, or empty.
	Payload []byte
	// Omitted tells that there was a payload which is larger than the NATS servers take: the entry in the log has it.
	Omitted bool
	// Trace is the span that published it, as a W3C traceparent. It travels in the header of that name, if it is sampled.
	Trace string
}

// The headers of CloudEvents (binary content mode), and ours beside them as extensions. Texts are percent-encoded as the
// protocol bindings of CloudEvents have it.
const (
	headerSpec     = "ce-specversion"
	headerID       = "ce-id"
	headerSource   = "ce-source"
	headerType     = "ce-type"
	headerSubject  = "ce-subject"
	headerTime     = "ce-time"
	headerContent  = "content-type"
	headerShard    = "ce-wiggleshard"
	headerSeq      = "ce-wiggleseq"
	headerSpace    = "ce-wigglenamespace"
	headerWorkflow = "ce-wiggleworkflow"
	headerVersion  = "ce-wiggleversion"
	headerRevision = "ce-wigglerevision"
	headerKey      = "ce-wigglekey"
	headerNode     = "ce-wigglenode"
	headerOmitted  = "ce-wiggleomitted"
	headerTrace    = "traceparent"

	specVersion = "1.0"
	sourceStart = "wiggle/shard/"
	jsonContent = "application/json"
	isTrue      = "true"

	// roomForHeaders is what the client adds to a message: its id, and what it expects of the stream.
	roomForHeaders = 1 << 10
)

// ID names the entry in the stream, by which NATS knows one that is sent twice. The time is in it because the numbers of a
// shard may come again after a failover that lost the last of them.
func (e *Event) ID() string {
	return fmt.Sprintf("s%d.%d.%d", e.Shard, e.Seq, e.Time.UnixMicro())
}

// SubjectRoot is what all subjects begin with.
const SubjectRoot = "wiggle.events"

// Subject is where the event is published: wiggle.events.{namespace}.{workflow}.{type}. Dots of the namespace and the
// workflow are written %2E; those of the type part it.
func (e *Event) Subject() string {
	return SubjectRoot + "." + token(e.Namespace) + "." + token(e.Workflow) + "." + subjectType(e.Type)
}

const upperHex = "0123456789ABCDEF"

// token writes a name as one token of a subject.
func token(name string) string {
	if name == "" {
		return "%"
	}
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(".*>%", c) >= 0 {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

func subjectType(name string) string {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		parts[i] = token(part)
	}
	return strings.Join(parts, ".")
}

// message is the event as NATS carries it. A message of more than so many bytes goes without its payload; 0 stands for no
// bound.
func (e *Event) message(maxBytes int64) *nats.Msg {
	m := nats.NewMsg(e.Subject())
	set := func(name, value string) {
		if value != "" {
			m.Header[name] = []string{value}
		}
	}
	set(headerSpec, specVersion)
	set(headerID, e.ID())
	set(headerSource, sourceStart+strconv.Itoa(e.Shard))
	set(headerType, escape(e.Type))
	set(headerSubject, escape(e.Instance))
	set(headerTime, e.Time.UTC().Format(time.RFC3339Nano))
	set(headerShard, strconv.Itoa(e.Shard))
	set(headerSeq, strconv.FormatInt(e.Seq, 10))
	set(headerSpace, escape(e.Namespace))
	set(headerWorkflow, escape(e.Workflow))
	set(headerVersion, strconv.Itoa(int(e.Version)))
	set(headerRevision, strconv.Itoa(int(e.Revision)))
	set(headerKey, escape(e.Key))
	set(headerNode, escape(e.Node))
	set(headerTrace, e.Trace)
	switch {
	case e.Omitted, maxBytes > 0 && int64(m.Size()+len(e.Payload)+roomForHeaders) > maxBytes && len(e.Payload) > 0:
		set(headerOmitted, isTrue)
	case len(e.Payload) > 0:
		set(headerContent, jsonContent)
		m.Data = e.Payload
	}
	return m
}

// escape writes a text as a header's value: printable ASCII but for the space, the quote and the percent sign stays, all
// other bytes are percent-encoded.
func escape(text string) string {
	plain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' }
	i := 0
	for i < len(text) && plain(text[i]) {
		i++
	}
	if i == len(text) {
		return text
	}
	b := append(make([]byte, 0, len(text)+8), text[:i]...)
	for ; i < len(text); i++ {
		if c := text[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return string(b)
}

// errNoEvent: a message of the stream is not one of ours.
var errNoEvent = errors.New("the message is no event of Wiggle's")

// Parse reads an event from a message's headers and data.
func Parse(header nats.Header, data []byte) (Event, error) {
	r := headerReader{header: header}
	e := Event{
		Instance: r.text(headerSubject), Namespace: r.text(headerSpace), Workflow: r.text(headerWorkflow), Key: r.text(headerKey),
		Type: r.text(headerType), Node: r.text(headerNode),
		Shard: int(r.number(headerShard, 32)), Seq: r.number(headerSeq, 64),
		Version: int32(r.number(headerVersion, 32)), Revision: int32(r.number(headerRevision, 32)), //nolint:gosec // of 32 bits
		Time: r.time(headerTime), Omitted: r.get(headerOmitted) == isTrue, Trace: r.get(headerTrace),
	}
	if len(data) > 0 && !e.Omitted {
		e.Payload = data
	}
	if err := errors.Join(r.errs...); err != nil {
		return Event{}, fmt.Errorf("%w: %w", errNoEvent, err)
	}
	if e.Shard < 0 || e.Instance == "" || e.Type == "" {
		return Event{}, errNoEvent
	}
	return e, nil
}

// headerReader reads values of headers and keeps what was wrong with them.
type headerReader struct {
	header nats.Header
	errs   []error
}

func (r *headerReader) get(name string) string {
	if v := r.header[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func (r *headerReader) note(name string, err error) {
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", name, err))
	}
}

func (r *headerReader) text(name string) string {
	text, err := url.PathUnescape(r.get(name))
	r.note(name, err)
	return text
}

func (r *headerReader) number(name string, bits int) int64 {
	n, err := strconv.ParseInt(r.get(name), 10, bits)
	r.note(name, err)
	return n
}

func (r *headerReader) time(name string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, r.get(name))
	r.note(name, err)
	return at.UTC()
}
