package definition

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sort"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxFaults bounds how many faults one text is told of.
const maxFaults = 100

// checkJSON finds unknown fields, duplicate keys and empty kinds in the JSON form
// of a message, all at once and with suggestions, which protojson does not. What
// it lets pass is left to protojson.
func checkJSON(data []byte, message protoreflect.MessageDescriptor) []SyntaxFault {
	c := &jsonChecker{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	c.dec.UseNumber()
	err := c.value(message)
	if err == nil {
		at := c.dec.InputOffset()
		if _, err = c.dec.Token(); errors.Is(err, io.EOF) {
			return c.faults
		}
		if err == nil {
			c.fault(c.skipSpace(at), "there is more after the definition")
			return c.faults
		}
	}
	if !errors.Is(err, errEnough) {
		c.syntax(err)
	}
	return c.faults
}

var errEnough = errors.New("enough faults")

// jsonChecker reads JSON token by token, so that it does not recurse deeper than
// the message's own fields, however deep the text is nested.
type jsonChecker struct {
	data   []byte
	dec    *json.Decoder
	lines  []int // offsets where lines start, found at the first fault
	faults []SyntaxFault
}

// value reads a value that should be the message; nil means any value.
func (c *jsonChecker) value(message protoreflect.MessageDescriptor) error {
	t, err := c.dec.Token()
	if err != nil {
		return err
	}
	switch {
	case t == json.Delim('{') && message != nil && !wellKnown(message):
		return c.object(func(key string, at int64) error { return c.member(message, key, at) })
	case t == json.Delim('{'):
		return c.object(func(string, int64) error { return c.skip() })
	case t == json.Delim('['):
		return c.rest()
	}
	return nil
}

// wellKnown tells of messages with a JSON form of their own.
func wellKnown(m protoreflect.MessageDescriptor) bool {
	return m.ParentFile().Package() == "google.protobuf"
}

// object reads the members of an object that is open.
func (c *jsonChecker) object(member func(key string, at int64) error) error {
	keys := map[string]bool{}
	for c.dec.More() {
		at := c.skipSpace(c.dec.InputOffset())
		t, err := c.dec.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string)
		if keys[key] {
			c.fault(at, "duplicate key "+quote(key))
		}
		keys[key] = true
		if len(c.faults) >= maxFaults {
			return errEnough
		}
		if err := member(key, at); err != nil {
			return err
		}
	}
	_, err := c.dec.Token()
	return err
}

// member reads the value of a message's field.
func (c *jsonChecker) member(message protoreflect.MessageDescriptor, key string, at int64) error {
	fields := message.Fields()
	f := fields.ByJSONName(key)
	if f == nil {
		f = fields.ByName(protoreflect.Name(key))
	}
	switch {
	case f == nil:
		c.fault(at, "unknown field "+quote(key)+" of "+string(message.Name())+c.hint(message, key))
		return c.skip()
	case f.IsMap():
		return c.mapValue(f.MapValue())
	case f.IsList():
		return c.list(f)
	case f.Message() == nil:
		return c.skip()
	case f.ContainingOneof() != nil && !wellKnown(f.Message()):
		// protojson takes null for a kind that is not set. In a file it is
		// rather a kind without settings.
		if value := c.skipSpace(c.dec.InputOffset()); bytes.HasPrefix(c.data[value:], []byte("null")) {
			c.fault(value, quote(key)+" is null; write {} for one without settings")
		}
	}
	return c.value(f.Message())
}

// mapValue reads a map with string keys.
func (c *jsonChecker) mapValue(value protoreflect.FieldDescriptor) error {
	t, err := c.dec.Token()
	switch {
	case err != nil:
		return err
	case t == json.Delim('['):
		return c.rest()
	case t != json.Delim('{'):
		return nil
	}
	return c.object(func(string, int64) error { return c.value(value.Message()) })
}

// list reads a list of messages or of anything else.
func (c *jsonChecker) list(f protoreflect.FieldDescriptor) error {
	t, err := c.dec.Token()
	switch {
	case err != nil:
		return err
	case t == json.Delim('{'):
		return c.rest()
	case t != json.Delim('['):
		return nil
	}
	for c.dec.More() {
		if err := c.value(f.Message()); err != nil {
			return err
		}
	}
	_, err = c.dec.Token()
	return err
}

// skip reads over one value.
func (c *jsonChecker) skip() error {
	t, err := c.dec.Token()
	if err != nil || (t != json.Delim('{') && t != json.Delim('[')) {
		return err
	}
	return c.rest()
}

// rest reads to the end of the object or list that was opened last.
func (c *jsonChecker) rest() error {
	for depth := 1; depth > 0; {
		t, err := c.dec.Token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
	return nil
}

// hint suggests a field's name.
func (c *jsonChecker) hint(message protoreflect.MessageDescriptor, key string) string {
	fields := message.Fields()
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = string(fields.Get(i).Name())
	}
	n := newNearest(names)
	return n.hint(key)
}

// syntax notes that the text is not JSON.
func (c *jsonChecker) syntax(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		c.fault(int64(len(c.data)), "the text ends in the middle of a value")
		return
	}
	// The offset in a json.SyntaxError counts from a place of the decoder's own.
	c.fault(c.skipSpace(c.dec.InputOffset()), err.Error())
}

// skipSpace is the offset of the next token at or after an offset.
func (c *jsonChecker) skipSpace(at int64) int64 {
	for at < int64(len(c.data)) && strings.IndexByte(" \t\r\n,:", c.data[at]) >= 0 {
		at++
	}
	return at
}

// fault notes a fault at an offset.
func (c *jsonChecker) fault(at int64, message string) {
	if c.lines == nil {
		c.lines = append(c.lines, 0)
		for i, ch := range c.data {
			if ch == '\n' {
				c.lines = append(c.lines, i+1)
			}
		}
	}
	line := sort.SearchInts(c.lines, int(at)+1)
	c.faults = append(c.faults, SyntaxFault{
		Line: line, Column: int(at) - c.lines[line-1] + 1, Message: message,
	})
}
