// Package secretfields knows which fields of messages hold secrets, by the option debug_redact of their schema, and says what is
// wrong with the JSON of such messages without repeating any of it.
package secretfields

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// deepest is how deep messages are looked into; those with secrets are flat.
const deepest = 8

// Is tells whether a field holds a secret.
func Is(field protoreflect.FieldDescriptor) bool {
	options, ok := field.Options().(*descriptorpb.FieldOptions)
	return ok && options.GetDebugRedact()
}

// In tells whether a message has a field that holds a secret, itself or in a message within it.
func In(message protoreflect.MessageDescriptor) bool { return in(message, 0) }

func in(message protoreflect.MessageDescriptor, depth int) bool {
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		if Is(field) || depth < deepest && field.Message() != nil && in(field.Message(), depth+1) {
			return true
		}
	}
	return false
}

// Misfit says why a text is not the JSON of a message, which it is known not to be. protobuf's own errors repeat the part that is
// wrong, and that may be the secret, or a piece of it that was taken for something else; this one has no word that is not the
// schema's.
func Misfit(message protoreflect.MessageDescriptor, text []byte) error {
	if !json.Valid(text) || !utf8.Valid(text) {
		return errors.New("the body is not JSON, or there is something behind it")
	}
	var members map[string]json.RawMessage
	_ = json.Unmarshal(text, &members) // of what is no object there are none
	names := make([]string, message.Fields().Len())
	for i := range names {
		field := message.Fields().Get(i)
		names[i] = string(field.Name())
		for _, key := range []string{field.JSONName(), names[i]} {
			value, ok := members[key]
			if ok && protojson.Unmarshal([]byte(`{"`+key+`":`+string(value)+`}`), dynamicpb.NewMessage(message)) != nil {
				return fmt.Errorf("the field %s has a value that it does not take", field.Name())
			}
		}
	}
	return fmt.Errorf("the body is no object with the fields %s, each at most once", strings.Join(names, ", "))
}
