package rpc

import (
	"errors"
	"fmt"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Validator checks messages against the buf.validate rules of their schemas. It compiles the rules of a type at its
// first use and keeps them, so a process has one for all of its servers. It is safe for concurrent use.
type Validator struct{ inner protovalidate.Validator }

// NewValidator returns a validator. The rules of the given messages are compiled at once.
func NewValidator(messages ...proto.Message) (*Validator, error) {
	inner, err := protovalidate.New(protovalidate.WithMessages(messages...))
	if err != nil {
		return nil, fmt.Errorf("make validator: %w", err)
	}
	return &Validator{inner: inner}, nil
}

// Validate returns nil or a fault made by [faults.Invalid] with every rule that the message breaks and the path of its
// field.
func (v *Validator) Validate(message proto.Message) error {
	err := v.inner.Validate(message)
	if err == nil {
		return nil
	}
	broken, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok {
		return faults.Internal(fmt.Errorf("validate %s: %w", message.ProtoReflect().Descriptor().FullName(), err))
	}
	problems := make([]*wigglev1.Problem, 0, len(broken.Violations))
	for _, violation := range broken.Violations {
		problems = append(problems, faults.Problem(
			protovalidate.FieldPathString(violation.Proto.GetField()), "%s", violationText(violation)))
	}
	return faults.Invalid(problems...)
}

// violationText returns a rule's own message, or its name where it has none.
func violationText(violation *protovalidate.Violation) string {
	if text := violation.Proto.GetMessage(); text != "" {
		return text
	}
	return "breaks the rule " + violation.Proto.GetRuleId()
}
