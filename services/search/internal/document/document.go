package document

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"mime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"
	"github.com/zeebo/xxh3"

	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// What bounds a document.
const (
	// MaxTextBytes bounds the text of the context. A tsvector may be four times as large, as of a word with hyphens or a URL
	// the parts are in it too, and no larger than 1 MiB.
	MaxTextBytes = 128 << 10
	// MaxFailureBytes bounds the text of a failure.
	MaxFailureBytes = 16 << 10
	// MaxAttributes is how many values of a context conditions can be about: the first.
	MaxAttributes = 64
	// MaxPathBytes and MaxValueBytes bound the path and the text of such a value. What is longer is text alone.
	MaxPathBytes  = 256
	MaxValueBytes = 256
	// maxDepth bounds how deep a context is looked into.
	maxDepth = 200
)

// The characters that stand around found words in snippets, and between snippets. No text holds them.
const (
	MarkStart = '\uE000'
	MarkStop  = '\uE001'
	MarkNext  = '\uE002'
)

// Key names an instance: its shard and ulid.
type Key struct {
	Shard int
	ULID  [16]byte
}

// String is the instance's id.
func (k Key) String() string { return shardid.NewInstance(k.Shard, ulid.ULID(k.ULID)).String() }

// ParseKey reads the id of an instance. Those from before sharding name no row that is kept, and so no document.
func ParseKey(id string) (Key, error) {
	parsed, err := shardid.ParseInstance(id)
	if err != nil {
		return Key{}, err
	}
	u, ok := parsed.ULID()
	if !ok || parsed.IsLegacy() {
		return Key{}, fmt.Errorf("instance %s is from before sharding", id)
	}
	return Key{Shard: parsed.Shard(), ULID: u}, nil
}

// Document is what is kept of an instance.
type Document struct {
	Key

	Revision, Version int32
	State, Priority   int16
	// CreatedAt and EndedAt are to the microsecond; EndedAt is zero while it runs.
	CreatedAt, EndedAt  time.Time
	Namespace, Workflow string
	// Text is that of the context, Failure that of the failure.
	Text, Failure string
	// Lexemes are for conditions of equality, each once.
	Lexemes []string
	// Numbers is a JSON object of numbers by JSON Pointer, or empty.
	Numbers string
}

// From makes the document of an instance. Its error is about the instance's id.
func From(in *wigglev1.Instance) (*Document, error) {
	key, err := ParseKey(in.GetId())
	if err != nil {
		return nil, err
	}
	d := &Document{
		Key: key, Revision: in.GetRevision(), Version: in.GetVersion(),
		State: int16(in.GetState()), Priority: int16(in.GetPriority()), //nolint:gosec // an enum; 0 to 9
		CreatedAt: moment(in.GetCreatedAt().AsTime()), Namespace: clean(in.GetNamespace()), Workflow: clean(in.GetWorkflow()),
		Failure: failureText(in.GetFailure()),
	}
	if in.GetEndedAt() != nil {
		d.EndedAt = moment(in.GetEndedAt().AsTime())
	}
	d.Lexemes = []string{WorkflowLexeme(in.GetWorkflow()), StateLexeme(in.GetState())}
	if isJSON(in.GetContext()) {
		var r reader
		r.read(in.GetContext().GetData())
		d.Text = r.text.String()
		d.Lexemes = append(d.Lexemes, r.lexemes...)
		if len(r.numbers) > 0 {
			// Numbers by text marshal: no number is NaN or infinite, and no path is not UTF-8.
			numbers, err := json.Marshal(r.numbers)
			if err != nil {
				return nil, fmt.Errorf("write the numbers of instance %s: %w", in.GetId(), err)
			}
			d.Numbers = string(numbers)
		}
	}
	return d, nil
}

// moment cuts a time to what PostgreSQL keeps.
func moment(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func isJSON(p *wigglev1.Payload) bool {
	if p.GetContentType() == "" {
		return true
	}
	kind, _, err := mime.ParseMediaType(p.GetContentType())
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json"))
}

// failureText is a failure for people, without its stack.
func failureText(f *wigglev1.Failure) string {
	if f == nil {
		return ""
	}
	var parts []string
	for _, part := range []string{f.GetType(), f.GetMessage()} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	text := strings.Join(parts, ": ")
	if f.GetNode() != "" {
		text += " (" + f.GetNode() + ")"
	}
	return cut(clean(text), MaxFailureBytes)
}

// clean takes out of a text what PostgreSQL does not keep in one, and what snippets mark words with.
func clean(s string) string {
	plain := true
	for i := range len(s) {
		if c := s[i]; c == 0 || c >= utf8.RuneSelf {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case 0, MarkStart, MarkStop, MarkNext:
			return ' '
		}
		return r // of what is no UTF-8: U+FFFD
	}, s)
}

// cut shortens a text to at most so many bytes, at the border of a character.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// Content hashes what is indexed under a language, so that what comes again is known.
func (d *Document) Content(language string) int64 {
	h := xxh3.New()
	var length [8]byte
	put := func(s string) {
		binary.BigEndian.PutUint64(length[:], uint64(len(s)))
		_, _ = h.Write(length[:])
		_, _ = h.WriteString(s)
	}
	for _, s := range []string{language, d.Namespace, d.Workflow, d.Text, d.Failure, d.Numbers} {
		put(s)
	}
	for _, s := range d.Lexemes {
		put(s)
	}
	put(fmt.Sprint(d.Version, d.State, d.Priority, d.CreatedAt.UnixMicro(), d.EndedAt.UnixMicro()))
	return int64(h.Sum64()) //nolint:gosec // bits
}
