package apidoc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// constraints says in words what values a field may have. Empty: any.
func constraints(f protoreflect.FieldDescriptor) (string, error) {
	rules, ok := proto.GetExtension(f.Options(), validate.E_Field).(*validate.FieldRules)
	if !ok || rules == nil {
		return "", nil
	}
	words, err := fieldRules(rules.ProtoReflect())
	if len(words) == 0 {
		return "", err
	}
	text := strings.Join(words, ", ")
	return strings.ToUpper(text[:1]) + text[1:] + ".", err
}

// rule is one constraint that is set.
type rule struct {
	name  protoreflect.Name
	field protoreflect.FieldDescriptor
	value protoreflect.Value
}

// set lists what is set in a message of rules, in the order of its numbers.
func set(rules protoreflect.Message) []rule {
	var all []rule
	rules.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		all = append(all, rule{f.Name(), f, v})
		return true
	})
	slices.SortFunc(all, func(a, b rule) int { return cmp.Compare(a.field.Number(), b.field.Number()) })
	return all
}

// fieldRules puts the rules of a field, an element, a key or a value into words.
func fieldRules(rules protoreflect.Message) (words []string, err error) {
	for _, r := range set(rules) {
		switch {
		case r.name == "required":
			if r.value.Bool() {
				words = append(words, "required")
			}
		case r.field.ContainingOneof() != nil: // the rules of a type
			more, wrong := typeRules(r.name, r.value.Message())
			words, err = append(words, more...), errors.Join(err, wrong)
		default:
			err = errors.Join(err, unknown("", r.name))
		}
	}
	return words, err
}

func unknown(kind, name protoreflect.Name) error {
	rule := strings.TrimPrefix(string(kind+"."+name), ".")
	return fmt.Errorf("the constraint %s has no words in internal/apidoc/constraints.go; add them", rule)
}

// units are what the lengths of a kind of value are counted in; their rules are named for them.
func units(kind protoreflect.Name) string {
	switch kind {
	case "string":
		return " characters"
	case "bytes":
		return " bytes"
	case "repeated":
		return " elements"
	case "map":
		return " entries"
	default:
		return ""
	}
}

// typeRules puts the rules of one type into words: a range first, whose ends may be two rules, then the others.
func typeRules(kind protoreflect.Name, rules protoreflect.Message) (words []string, err error) {
	var least, most string
	for _, r := range set(rules) {
		switch r.name {
		case "gte", "min_len", "min_items", "min_pairs":
			least = number(r)
		case "lte", "max_len", "max_items", "max_pairs":
			most = number(r)
		case "items", "keys", "values":
			inner, wrong := fieldRules(r.value.Message())
			if len(inner) > 0 {
				words = append(words, partOf(r.name)+": "+strings.Join(inner, ", "))
			}
			err = errors.Join(err, wrong)
		default:
			text, wrong := single(kind, r)
			if text != "" {
				words = append(words, text)
			}
			err = errors.Join(err, wrong)
		}
	}
	if text := between(least, most); text != "" {
		words = append([]string{text + units(kind)}, words...)
	}
	return words, err
}

// partOf names what the rules within a list's or map's rules are about.
func partOf(name protoreflect.Name) string {
	switch name {
	case "items":
		return "each element"
	case "keys":
		return "each key"
	default:
		return "each value"
	}
}

func between(least, most string) string {
	switch {
	case least == "" && most == "":
		return ""
	case least == "":
		return "at most " + most
	case most == "":
		return "at least " + least
	case least == most:
		return "exactly " + most
	default:
		return least + " to " + most
	}
}

// single puts a rule that stands alone into words.
func single(kind protoreflect.Name, r rule) (string, error) {
	switch r.name {
	case "gt":
		return "more than " + number(r), nil
	case "lt":
		return "less than " + number(r), nil
	case "len":
		return "exactly " + number(r) + units(kind), nil
	case "const":
		return "always " + quoted(r.value), nil
	case "pattern":
		return "matches " + quoted(r.value), nil
	case "prefix":
		return "begins with " + quoted(r.value), nil
	case "in":
		var all []string
		for i := range r.value.List().Len() {
			all = append(all, quoted(r.value.List().Get(i)))
		}
		return "one of " + strings.Join(all, ", "), nil
	case "unique":
		return when(r, "no two alike"), nil
	case "defined_only":
		return when(r, "one of its values"), nil
	case "email":
		return when(r, "an email address"), nil
	case "uri":
		return when(r, "a URI"), nil
	default:
		return "", unknown(kind, r.name)
	}
}

func when(r rule, text string) string {
	if r.value.Bool() {
		return text
	}
	return ""
}

// number is the bound that a rule sets: a count, a number or a length of time.
func number(r rule) string {
	if r.field.Message() != nil {
		if d, ok := r.value.Message().Interface().(*durationpb.Duration); ok {
			return d.AsDuration().String()
		}
	}
	return r.value.String()
}
