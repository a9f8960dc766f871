package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wiggle-run/wiggle/pkg/secretfields"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const (
	codecName = "json"
	// codecNameCharset is what browsers and others send for the same; Connect knows codecs by the whole name.
	codecNameCharset = "json; charset=utf-8"
)

// JSONCodec is protobuf's JSON with payloads as structured JSON (WF-9).
//
// Reading, where the schema has a wigglev1.Payload and the JSON has its field `json`, the value's text goes into `data`
// as it stands, but for the white space: numbers of any size and precision stay what they were. The content type becomes
// application/json if there is none. Writing, a payload whose content type is application/json or empty, and whose
// data is JSON, is written in `json` as its text stands; any other in `data`. Nothing inside a google.protobuf.Any is
// changed.
//
// The codec of a server refuses fields that the schema does not have and names them; the codec of a client ignores
// them, as its server may be of a later release.
type JSONCodec struct {
	name     string
	payloads *Payloads
	discard  bool
}

// NewClientJSONCodec returns the codec for connect.WithCodec on a client.
func NewClientJSONCodec(payloads *Payloads) *JSONCodec {
	return &JSONCodec{name: codecName, payloads: payloads, discard: true}
}

// NewServerJSONCodecs returns the codecs for connect.WithCodec on a handler, one for each name of the media type.
// A [Server] has them already.
func NewServerJSONCodecs(payloads *Payloads) []*JSONCodec {
	return []*JSONCodec{{name: codecName, payloads: payloads}, {name: codecNameCharset, payloads: payloads}}
}

func jsonHandlerOptions(payloads *Payloads) []connect.HandlerOption {
	var options []connect.HandlerOption
	for _, codec := range NewServerJSONCodecs(payloads) {
		options = append(options, connect.WithCodec(codec))
	}
	return options
}

// Name implements [connect.Codec].
func (c *JSONCodec) Name() string { return c.name }

// IsBinary tells Connect that the encoding is text.
func (c *JSONCodec) IsBinary() bool { return false }

// Marshal implements [connect.Codec].
func (c *JSONCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalStable is Marshal without the spaces that protobuf adds at random.
func (c *JSONCodec) MarshalStable(message any) ([]byte, error) {
	text, err := c.Marshal(message)
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, fmt.Errorf("compact: %w", err)
	}
	return compact.Bytes(), nil
}

// MarshalAppend appends the message to dst.
func (c *JSONCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a proto.Message", message)
	}
	reflected := m.ProtoReflect()
	plan := c.payloads.plan(reflected.Descriptor())
	var raws [][]byte
	if plan != nil {
		m = c.standIn(reflected, plan, &raws).Interface()
	}
	start := len(dst)
	dst, err := protojson.MarshalOptions{}.MarshalAppend(dst, m)
	if err != nil {
		return nil, fmt.Errorf("marshal %s: %w", reflected.Descriptor().FullName(), err)
	}
	if len(raws) == 0 {
		return dst, nil
	}
	return c.substitute(dst[:start:start], dst[start:], raws)
}

// standIn returns a copy of the message in which a marked string stands for each payload that is written as raw JSON.
// It shares with the message everything that leads to no payload.
func (c *JSONCodec) standIn(m protoreflect.Message, plan *payloadPlan, raws *[][]byte) protoreflect.Message {
	if plan.isPayload {
		payload, ok := m.Interface().(*wigglev1.Payload)
		if !ok || payload.GetJson() != nil || !isJSON(payload.GetContentType()) || !isRawJSON(payload.GetData()) {
			return m
		}
		*raws = append(*raws, payload.GetData())
		return (&wigglev1.Payload{
			ContentType: payload.GetContentType(),
			Json:        structpb.NewStringValue(c.payloads.marker + strconv.Itoa(len(*raws)-1)),
		}).ProtoReflect()
	}
	out := m.New()
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		sub := plan.byNumber[field.Number()]
		if sub == nil || field.IsExtension() {
			out.Set(field, value)
			return true
		}
		c.standInField(out, field, value, sub, raws)
		return true
	})
	return out
}

func (c *JSONCodec) standInField(
	out protoreflect.Message, field protoreflect.FieldDescriptor, value protoreflect.Value, plan *payloadPlan,
	raws *[][]byte,
) {
	switch {
	case field.IsMap():
		entries := out.Mutable(field).Map()
		value.Map().Range(func(key protoreflect.MapKey, in protoreflect.Value) bool {
			entries.Set(key, protoreflect.ValueOfMessage(c.standIn(in.Message(), plan, raws)))
			return true
		})
	case field.IsList():
		list := out.Mutable(field).List()
		for i := range value.List().Len() {
			list.Append(protoreflect.ValueOfMessage(c.standIn(value.List().Get(i).Message(), plan, raws)))
		}
	default:
		out.Set(field, protoreflect.ValueOfMessage(c.standIn(value.Message(), plan, raws)))
	}
}

// substitute writes text to dst with the raw JSON in place of the marked strings.
func (c *JSONCodec) substitute(dst, text []byte, raws [][]byte) ([]byte, error) {
	quoted := []byte(`"` + c.payloads.marker)
	size := len(dst) + len(text)
	for _, raw := range raws {
		size += len(raw)
	}
	out := append(make([]byte, 0, size), dst...)
	for {
		before, after, found := bytes.Cut(text, quoted)
		out = append(out, before...)
		if !found {
			return out, nil
		}
		number, rest, found := bytes.Cut(after, []byte{'"'})
		index, err := strconv.Atoi(string(number))
		if err != nil || !found || index < 0 || index >= len(raws) {
			return nil, errors.New("marshal: a payload's place is lost")
		}
		out = append(out, raws[index]...)
		text = rest
	}
}

// isRawJSON reports whether data may stand in a JSON text as it is.
func isRawJSON(data []byte) bool {
	return len(data) > 0 && utf8.Valid(data) && json.Valid(data) && depthOf(data) <= maxPayloadDepth
}

// Unmarshal implements [connect.Codec].
func (c *JSONCodec) Unmarshal(text []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a proto.Message", message)
	}
	if len(text) == 0 {
		return errors.New("the body is empty; an empty message is {}")
	}
	if plan := c.payloads.plan(m.ProtoReflect().Descriptor()); plan != nil && mayHoldJSON(text) {
		if err := checkJSON(text); err != nil {
			return err
		}
		rewritten, err := rewriter{}.message(m.ProtoReflect().Descriptor(), plan, text, 0)
		if err != nil {
			return err
		}
		text = rewritten
	}
	err := protojson.UnmarshalOptions{DiscardUnknown: c.discard}.Unmarshal(text, m)
	switch md := m.ProtoReflect().Descriptor(); {
	case err == nil:
		return nil
	case secretfields.In(md):
		return secretfields.Misfit(md, text)
	}
	return errors.New(plainText(err))
}

// checkJSON tells where a text is not JSON.
func checkJSON(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("the body is not UTF-8")
	}
	if json.Valid(text) {
		return nil
	}
	var raw json.RawMessage
	err := json.Unmarshal(text, &raw)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("the body is not JSON: %s at byte %d", strings.TrimPrefix(syntax.Error(), "json: "), syntax.Offset)
	}
	return fmt.Errorf("the body is not JSON: %w", err)
}

// mayHoldJSON reports whether a text can have a key "json", which may be written with escapes.
func mayHoldJSON(text []byte) bool {
	return bytes.Contains(text, []byte("json")) || bytes.Contains(text, []byte(`\u`))
}

// plainText strips protobuf's prefix, whose spaces change from build to build, and the position, which is one in the
// rewritten text.
func plainText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	text = strings.TrimPrefix(text, "proto: ")
	if rest, ok := strings.CutPrefix(text, "(line "); ok {
		if _, message, ok := strings.Cut(rest, "): "); ok {
			return message
		}
	}
	return strings.TrimPrefix(text, "syntax error ")
}
