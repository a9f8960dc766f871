package rpc

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const (
	// maxMessageDepth bounds how deep messages are nested in a request that holds payloads.
	maxMessageDepth = 128
	// maxPayloadDepth bounds how deep a payload's JSON is nested, so that whoever parses it later can.
	maxPayloadDepth = 1000
)

// rewriter moves the raw JSON of payloads to where protobuf's own parser keeps it exact: `data`, in base64. It is led by
// the schema, so that a user's object with a field "json" stays what it is. Its input is valid JSON ([checkJSON]); the
// rest of what can be wrong with a message, protobuf's parser finds afterwards.
type rewriter struct{}

// message rewrites the object of one message; whatever is not an object is left to protobuf's parser.
func (r rewriter) message(
	md protoreflect.MessageDescriptor, plan *payloadPlan, text []byte, depth int,
) ([]byte, error) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || text[0] != '{' {
		return text, nil
	}
	if depth > maxMessageDepth {
		return nil, fmt.Errorf("messages are nested more than %d deep", maxMessageDepth)
	}
	if plan.isPayload {
		return r.payload(text)
	}
	out := make([]byte, 0, len(text)+len(text)/2)
	out = append(out, '{')
	err := eachMember(text, func(key string, keyText, value []byte) error {
		out = appendMember(out, keyText)
		field := fieldOf(md, key)
		var sub *payloadPlan
		if field != nil {
			sub = plan.byNumber[field.Number()]
		}
		if sub == nil {
			out = append(out, value...)
			return nil
		}
		rewritten, err := r.field(field, sub, value, depth)
		out = append(out, rewritten...)
		return at(string(field.Name()), err)
	})
	return append(out, '}'), err
}

// field rewrites the value of a field that leads to payloads.
func (r rewriter) field(
	field protoreflect.FieldDescriptor, plan *payloadPlan, value []byte, depth int,
) ([]byte, error) {
	md := messageOf(field)
	switch {
	case field.IsMap() && value[0] == '{':
		out := []byte{'{'}
		err := eachMember(value, func(key string, keyText, entry []byte) error {
			rewritten, err := r.message(md, plan, entry, depth+1)
			out = append(appendMember(out, keyText), rewritten...)
			return at(fmt.Sprintf("[%q]", key), err)
		})
		return append(out, '}'), err
	case field.IsList() && value[0] == '[':
		out := []byte{'['}
		err := eachElement(value, func(index int, element []byte) error {
			rewritten, err := r.message(md, plan, element, depth+1)
			if index > 0 {
				out = append(out, ',')
			}
			out = append(out, rewritten...)
			return at(fmt.Sprintf("[%d]", index), err)
		})
		return append(out, ']'), err
	case field.IsMap(), field.IsList():
		return value, nil
	}
	return r.message(md, plan, value, depth+1)
}

// payload rewrites one payload.
func (r rewriter) payload(text []byte) ([]byte, error) {
	var raw, data, contentType []byte
	var rest [][2][]byte // what protobuf's parser shall see, or refuse
	md := (*wigglev1.Payload)(nil).ProtoReflect().Descriptor()
	err := eachMember(text, func(key string, keyText, value []byte) error {
		var name protoreflect.Name
		if field := fieldOf(md, key); field != nil {
			name = field.Name()
		}
		switch name {
		case "json":
			if raw != nil {
				return errors.New("json is set twice")
			}
			raw = value
			return nil
		case "data":
			data = value
		case "content_type":
			contentType = value
		}
		rest = append(rest, [2][]byte{keyText, value})
		return nil
	})
	if err != nil || raw == nil {
		return text, err
	}
	if err := checkPayload(raw, data, contentType); err != nil {
		return nil, err
	}
	return joinPayload(raw, contentType, rest)
}

// checkPayload refuses what cannot be meant.
func checkPayload(raw, data, contentType []byte) error {
	if len(data) > 0 && !isUnset(data) {
		return errBothSet
	}
	if depthOf(raw) > maxPayloadDepth {
		return fmt.Errorf("json is nested more than %d deep", maxPayloadDepth)
	}
	var mediaType string
	if len(contentType) > 0 && contentType[0] == '"' && json.Unmarshal(contentType, &mediaType) == nil &&
		!isJSON(mediaType) {
		return notJSON(mediaType)
	}
	return nil
}

func joinPayload(raw, contentType []byte, rest [][2][]byte) ([]byte, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, fmt.Errorf("json: %w", err)
	}
	out := []byte(`{"data":"`)
	out = base64.StdEncoding.AppendEncode(out, compact.Bytes())
	out = append(out, '"')
	hasType := len(contentType) > 0 && !isUnset(contentType)
	if !hasType {
		out = append(out, `,"contentType":"`+mediaTypeJSON+`"`...)
	}
	md := (*wigglev1.Payload)(nil).ProtoReflect().Descriptor()
	for _, member := range rest {
		field := fieldOf(md, unquote(member[0]))
		if field != nil && (field.Name() == "data" || field.Name() == "content_type" && !hasType) {
			continue // unset: null or empty
		}
		out = append(appendMember(out, member[0]), member[1]...)
	}
	return append(out, '}'), nil
}

// isUnset reports whether a string field's JSON means that it is not set.
func isUnset(value []byte) bool { return string(value) == "null" || string(value) == `""` }

// fieldOf finds a field as protobuf's parser does: by its JSON name or its name in the schema.
func fieldOf(md protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if field := md.Fields().ByJSONName(key); field != nil {
		return field
	}
	return md.Fields().ByTextName(key)
}

// appendMember appends a comma where one is due, and the key.
func appendMember(out, keyText []byte) []byte {
	if len(out) > 1 {
		out = append(out, ',')
	}
	return append(append(out, keyText...), ':')
}

// eachMember calls f for each member of a valid object, with the key, its text, and the text of its value.
func eachMember(text []byte, f func(key string, keyText, value []byte) error) error {
	i := skipSpace(text, 1)
	for i < len(text) && text[i] != '}' {
		end := skipValue(text, i)
		keyText := text[i:end]
		i = skipSpace(text, skipSpace(text, end)+1) // the colon
		end = skipValue(text, i)
		if i >= end {
			return errors.New("the body is not JSON")
		}
		if err := f(unquote(keyText), keyText, text[i:end]); err != nil {
			return err
		}
		i = skipComma(text, end)
	}
	return nil
}

// eachElement calls f for each element of a valid array.
func eachElement(text []byte, f func(index int, element []byte) error) error {
	i := skipSpace(text, 1)
	for index := 0; i < len(text) && text[i] != ']'; index++ {
		end := skipValue(text, i)
		if i >= end {
			return errors.New("the body is not JSON")
		}
		if err := f(index, text[i:end]); err != nil {
			return err
		}
		i = skipComma(text, end)
	}
	return nil
}

func skipComma(text []byte, i int) int {
	i = skipSpace(text, i)
	if i < len(text) && text[i] == ',' {
		i = skipSpace(text, i+1)
	}
	return i
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return min(i, len(text))
}

// skipValue returns where the value ends that begins at i in a valid text.
func skipValue(text []byte, i int) int {
	if i >= len(text) {
		return len(text)
	}
	switch text[i] {
	case '"':
		return skipString(text, i)
	case '{', '[':
		depth := 0
		for i < len(text) {
			switch text[i] {
			case '"':
				i = skipString(text, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			i++
			if depth == 0 {
				return i
			}
		}
		return len(text)
	}
	for i < len(text) && !strings.ContainsRune(" \t\r\n,:]}", rune(text[i])) {
		i++
	}
	return i
}

func skipString(text []byte, i int) int {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

// depthOf returns how deep a valid text is nested.
func depthOf(text []byte) int {
	depth, deepest := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = skipString(text, i) - 1
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	}
	return deepest
}

// unquote returns the string that a valid JSON string is.
func unquote(text []byte) string {
	if len(text) >= 2 && bytes.IndexByte(text, '\\') < 0 {
		return string(text[1 : len(text)-1])
	}
	var s string
	_ = json.Unmarshal(text, &s) // valid
	return s
}
