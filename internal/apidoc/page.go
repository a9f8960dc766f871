package apidoc

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

func (w *writer) index(files []protoreflect.FileDescriptor) {
	w.printf("# API reference\n\n%s\n%s\n", notice, strings.TrimSpace(w.opts.Introduction))
	w.printf("\n| call | what it does |\n|---|---|\n")
	var others []string
	for _, file := range files {
		if file.Services().Len() == 0 {
			others = append(others, "["+file.Path()+"]("+pageOf(file)+")")
		}
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			w.printf("| **%s** | %s |\n", w.link(service), cell(firstSentence(w.comment(service))))
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				w.printf("| %s | %s |\n", w.link(method), cell(firstSentence(w.comment(method))))
			}
		}
	}
	if len(others) > 0 {
		w.printf("\nWhat several of them speak of is in %s.\n", strings.Join(others, ", "))
	}
}

// page writes all that the file defines, services first.
func (w *writer) page() {
	w.printf("# [%s](%s/%[1]s)\n\n%[3]s", w.file.Path(), w.opts.Source, notice)
	services := w.file.Services()
	for i := range services.Len() {
		w.service(services.Get(i))
	}
	w.messages(w.file.Messages())
	w.enums(w.file.Enums())
}

func (w *writer) service(s protoreflect.ServiceDescriptor) {
	w.heading(2, s)
	w.printf("\n%s\n", prose(w.comment(s)))
	for i := range s.Methods().Len() {
		w.method(s.Methods().Get(i))
	}
}

func (w *writer) method(m protoreflect.MethodDescriptor) {
	w.heading(3, m)
	stream := func(is bool) string {
		if is {
			return "stream of "
		}
		return ""
	}
	w.printf("\n`%s/%s`: %s%s to %s%s.\n", m.Parent().FullName(), m.Name(),
		stream(m.IsStreamingClient()), w.link(m.Input()), stream(m.IsStreamingServer()), w.link(m.Output()))
	w.printf("%s, %s.\n", kindOf(m), repeatable(m))
	if permission := w.permission(m); permission != "" {
		w.printf("%s\n", permission)
	}
	w.printf("\n%s\n", prose(w.comment(m)))
}

func kindOf(m protoreflect.MethodDescriptor) string {
	switch {
	case m.IsStreamingClient() && m.IsStreamingServer():
		return "Bidirectional stream"
	case m.IsStreamingServer():
		return "Server stream"
	case m.IsStreamingClient():
		return "Client stream"
	default:
		return "Unary"
	}
}

func repeatable(m protoreflect.MethodDescriptor) string {
	options, _ := m.Options().(*descriptorpb.MethodOptions)
	switch options.GetIdempotencyLevel() {
	case descriptorpb.MethodOptions_NO_SIDE_EFFECTS:
		return "changes nothing"
	case descriptorpb.MethodOptions_IDEMPOTENT:
		return "safe to repeat"
	case descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN:
		fallthrough
	default:
		return "no idempotency declared"
	}
}

func (w *writer) messages(all protoreflect.MessageDescriptors) {
	for i := range all.Len() {
		m := all.Get(i)
		if m.IsMapEntry() {
			continue
		}
		w.heading(2, m)
		w.printf("\n%s\n", prose(w.comment(m)))
		if m.Fields().Len() > 0 {
			w.printf("\n| no. | field | type | meaning |\n|---|---|---|---|\n")
			for j := range m.Fields().Len() {
				w.field(m.Fields().Get(j))
			}
		}
		w.messages(m.Messages())
		w.enums(m.Enums())
	}
}

// field writes the row of a field, and before the first of a oneof the row of that.
func (w *writer) field(f protoreflect.FieldDescriptor) {
	name := "`" + string(f.Name()) + "`"
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		if o.Fields().Get(0) == f {
			w.printf("| | `%s` | one of | %s |\n", o.Name(), cell(w.comment(o)))
		}
		name = "&nbsp;&nbsp;" + name
	}
	meaning := cell(w.comment(f))
	rules, err := constraints(f)
	if err != nil {
		w.problem(f, "%w", err)
	}
	if rules != "" {
		meaning += " *" + cell(rules) + "*"
	}
	w.printf("| %d | %s | %s | %s |\n", f.Number(), name, w.typeOf(f), meaning)
}

func (w *writer) typeOf(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return "map of " + w.single(f.MapKey()) + " to " + w.single(f.MapValue())
	case f.IsList():
		return "repeated " + w.single(f)
	case f.HasOptionalKeyword():
		return "optional " + w.single(f)
	default:
		return w.single(f)
	}
}

func (w *writer) single(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return w.link(f.Message())
	case protoreflect.EnumKind:
		return w.link(f.Enum())
	default:
		return f.Kind().String()
	}
}

func (w *writer) enums(all protoreflect.EnumDescriptors) {
	for i := range all.Len() {
		e := all.Get(i)
		w.heading(2, e)
		w.printf("\n%s\n\n| no. | value | meaning |\n|---|---|---|\n", prose(w.comment(e)))
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			w.printf("| %d | `%s` | %s |\n", v.Number(), v.Name(), cell(w.comment(v)))
		}
	}
}

// firstSentence ends at the first full stop that ends a sentence.
func firstSentence(text string) string {
	text = strings.ReplaceAll(text, "\n", " ")
	if sentence, _, more := strings.Cut(text, ". "); more {
		return sentence + "."
	}
	return text
}

// prose is a comment as Markdown: what Markdown would take for a tag is shown as it stands, except within backticks, where
// it is anyway.
func prose(text string) string {
	parts := strings.Split(text, "`")
	for i := 0; i < len(parts); i += 2 {
		parts[i] = strings.NewReplacer("<", "&lt;", "*", `\*`).Replace(parts[i])
	}
	return strings.Join(parts, "`")
}

// cell is a comment within a table: on one line, without a bar that would end the cell.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(prose(text)), " "), "|", `\|`)
}

// quoted is a value as code.
func quoted(value any) string { return fmt.Sprintf("`%v`", value) }
