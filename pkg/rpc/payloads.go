package rpc

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const mediaTypeJSON = "application/json"

var errBothSet = errors.New("data and json are both set; set one of them")

// Payloads knows where the types of messages have a wigglev1.Payload, and brings those into the form that the server
// works with: bytes in `data`. It learns a type at its first use, after which messages without payloads cost a look-up.
// A process has one for all of its servers and codecs. It is safe for concurrent use.
type Payloads struct {
	plans sync.Map // protoreflect.MessageDescriptor to *payloadPlan
	// marker starts the strings that stand for raw JSON while a message is written, see JSONCodec. It never leaves the
	// process and nobody can guess it, so no client's string is taken for one.
	marker string
}

// payloadPlan lists the fields of a type through which payloads are reached.
type payloadPlan struct {
	isPayload bool
	fields    []payloadField
	byNumber  map[protoreflect.FieldNumber]*payloadPlan
}

// payloadField is a field of a type, with the plan of the messages in it.
type payloadField struct {
	field protoreflect.FieldDescriptor
	plan  *payloadPlan
}

// NewPayloads returns a Payloads that has learnt no type yet.
func NewPayloads() *Payloads {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails, see crypto/rand
	return &Payloads{marker: "payload-" + hex.EncodeToString(nonce[:]) + "-"}
}

// Normalize moves every payload's `json` into `data`, in place. Its error is a fault that names the field.
func (p *Payloads) Normalize(message proto.Message) error {
	if message == nil {
		return nil
	}
	m := message.ProtoReflect()
	plan := p.plan(m.Descriptor())
	if plan == nil || !m.IsValid() {
		return nil
	}
	if err := normalize(m, plan); err != nil {
		return asFault(err)
	}
	return nil
}

func normalize(m protoreflect.Message, plan *payloadPlan) error {
	if plan.isPayload {
		if payload, ok := m.Interface().(*wigglev1.Payload); ok {
			return normalizePayload(payload)
		}
		return nil
	}
	for _, f := range plan.fields {
		if !m.Has(f.field) {
			continue
		}
		if err := normalizeField(f, m.Get(f.field)); err != nil {
			return err
		}
	}
	return nil
}

func normalizeField(f payloadField, value protoreflect.Value) error {
	name := string(f.field.Name())
	switch {
	case f.field.IsMap():
		var err error
		value.Map().Range(func(key protoreflect.MapKey, in protoreflect.Value) bool {
			err = at(name, at(fmt.Sprintf("[%q]", key.String()), normalize(in.Message(), f.plan)))
			return err == nil
		})
		return err
	case f.field.IsList():
		list := value.List()
		for i := range list.Len() {
			if err := normalize(list.Get(i).Message(), f.plan); err != nil {
				return at(name, at(fmt.Sprintf("[%d]", i), err))
			}
		}
		return nil
	}
	return at(name, normalize(value.Message(), f.plan))
}

func normalizePayload(payload *wigglev1.Payload) error {
	if payload.GetJson() == nil {
		return nil
	}
	if len(payload.GetData()) > 0 {
		return errBothSet
	}
	if !isJSON(payload.GetContentType()) {
		return notJSON(payload.GetContentType())
	}
	raw, err := protojson.Marshal(payload.GetJson())
	if err != nil {
		return errors.New("json holds a number that JSON has not (NaN or infinite), or no value")
	}
	var compact bytes.Buffer // protojson adds spaces at random
	if err := json.Compact(&compact, raw); err != nil {
		return fmt.Errorf("json: %w", err)
	}
	payload.Data, payload.Json = compact.Bytes(), nil
	if payload.GetContentType() == "" {
		payload.ContentType = mediaTypeJSON
	}
	return nil
}

// plan returns how payloads are reached from a type, nil if there are none.
func (p *Payloads) plan(md protoreflect.MessageDescriptor) *payloadPlan {
	if known, ok := p.plans.Load(md); ok {
		plan, _ := known.(*payloadPlan)
		return plan
	}
	plan := makePlan(md, map[protoreflect.FullName]*payloadPlan{})
	p.plans.Store(md, plan)
	return plan
}

// makePlan makes the plan of a type and, in made, of the types it leads to, which may lead back.
func makePlan(md protoreflect.MessageDescriptor, made map[protoreflect.FullName]*payloadPlan) *payloadPlan {
	if plan, ok := made[md.FullName()]; ok {
		return plan
	}
	if !leadsToPayload(md, map[protoreflect.FullName]bool{}) {
		return nil
	}
	plan := &payloadPlan{isPayload: isPayload(md), byNumber: map[protoreflect.FieldNumber]*payloadPlan{}}
	made[md.FullName()] = plan
	if plan.isPayload {
		return plan
	}
	for i := range md.Fields().Len() {
		field := md.Fields().Get(i)
		inner := messageOf(field)
		if inner == nil {
			continue
		}
		if sub := makePlan(inner, made); sub != nil {
			plan.fields = append(plan.fields, payloadField{field: field, plan: sub})
			plan.byNumber[field.Number()] = sub
		}
	}
	return plan
}

func leadsToPayload(md protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if isPayload(md) {
		return true
	}
	if seen[md.FullName()] {
		return false
	}
	seen[md.FullName()] = true
	for i := range md.Fields().Len() {
		if inner := messageOf(md.Fields().Get(i)); inner != nil && leadsToPayload(inner, seen) {
			return true
		}
	}
	return false
}

// messageOf returns the type of the messages in a field, nil if it has none.
func messageOf(field protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if field.IsMap() {
		return field.MapValue().Message()
	}
	return field.Message()
}

func isPayload(md protoreflect.MessageDescriptor) bool {
	return md.FullName() == (*wigglev1.Payload)(nil).ProtoReflect().Descriptor().FullName()
}

// isJSON reports whether a payload of the content type is JSON: when it is empty, or application/json whatever the
// parameters.
func isJSON(contentType string) bool {
	if contentType == "" || contentType == mediaTypeJSON {
		return true
	}
	mediaType, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), mediaTypeJSON)
}

func notJSON(contentType string) error {
	return fmt.Errorf("json is set with the content type %q; use %s or send the value in data", contentType, mediaTypeJSON)
}

// placed is an error with the path of its field.
type placed struct {
	path string
	err  error
}

func (e *placed) Error() string { return e.path + ": " + e.err.Error() }
func (e *placed) Unwrap() error { return e.err }

// at puts a place in front of the path of an error.
func at(place string, err error) error {
	if err == nil {
		return nil
	}
	if inner, ok := err.(*placed); ok { //nolint:errorlint // only one that at has made
		if !strings.HasPrefix(inner.path, "[") {
			place += "."
		}
		return &placed{path: place + inner.path, err: inner.err}
	}
	return &placed{path: place, err: err}
}

// asFault makes an error of this file a fault.
func asFault(err error) error {
	if inner, ok := errors.AsType[*placed](err); ok {
		return faults.Invalid(faults.Problem(inner.path, "%s", inner.err.Error()))
	}
	return faults.Invalid(faults.Problem("", "%s", err.Error()))
}
