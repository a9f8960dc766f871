package rpc

import (
	"context"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/secretfields"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Pasted is the interceptor for credentials in fields that are no place for secrets: what is there is kept, logged and shown.
// Where the id of a key or session is asked for, that of the credential is taken: whoever finds a key that leaked has the whole
// of it at hand. Anywhere else the call is refused.
type Pasted struct{}

// WrapUnary implements [connect.Interceptor].
func (Pasted) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		m, ok := req.Any().(proto.Message)
		if ok && m.ProtoReflect().Descriptor().ParentFile() == wigglev1.File_wiggle_v1_auth_service_proto {
			if err := refusePasted(m.ProtoReflect()); err != nil {
				return nil, err
			}
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements [connect.Interceptor].
func (Pasted) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements [connect.Interceptor]. The service has no streams of its own.
func (Pasted) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// refusePasted looks for credentials in a message, and puts their ids where ids are meant.
func refusePasted(m protoreflect.Message) (err error) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if secretfields.Is(field) {
			return true
		}
		switch {
		case field.IsMap(): // there is none
		case field.IsList():
			for i := range value.List().Len() {
				if err = refusePastedIn(field, value.List().Get(i)); err != nil {
					return false
				}
			}
		case field.Name() == "key" || field.Name() == "session_id":
			m.Set(field, protoreflect.ValueOfString(publicID(value.String())))
		default:
			err = refusePastedIn(field, value)
		}
		return err == nil
	})
	return err
}

func refusePastedIn(field protoreflect.FieldDescriptor, value protoreflect.Value) error {
	switch field.Kind() {
	case protoreflect.MessageKind:
		return refusePasted(value.Message())
	case protoreflect.StringKind:
		if faults.Hide(value.String()) != value.String() {
			return faults.Invalid(faults.Problem(string(field.Name()),
				"holds a credential, which is a secret and stays out of names: give a name, or the id between the first two _"))
		}
	default:
	}
	return nil
}

// publicID is the id of a credential, and of anything else itself.
func publicID(text string) string {
	if faults.Hide(text) == text {
		return text
	}
	_, rest, _ := strings.Cut(text, "_")
	id, _, _ := strings.Cut(rest, "_")
	return id
}
