package definitionfile

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// jsonWriter writes a YAML value as JSON, each key and each value on a line of
// its own, and keeps for each line where in the YAML it comes from. So a place in
// the JSON has one in the YAML.
type jsonWriter struct {
	out    bytes.Buffer
	places []position
}

// position is a place in the YAML; lines and columns count from 1.
type position struct{ line, column int }

// begin starts a line for what stands at a token.
func (w *jsonWriter) begin(t *token.Token) {
	if len(w.places) > 0 {
		w.out.WriteByte('\n')
	}
	p := position{}
	if t != nil && t.Position != nil {
		p = position{t.Position.Line, t.Position.Column}
	}
	w.places = append(w.places, p)
}

func (w *jsonWriter) value(n ast.Node, depth int) error {
	if depth > maxDepth {
		return at(n.GetToken(), fmt.Sprintf("values stand more than %d deep within each other", maxDepth))
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		return w.mapping(n.GetToken(), n.Values, depth)
	case *ast.MappingValueNode: // a mapping of one key
		return w.mapping(n.GetToken(), []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		return w.sequence(n, depth)
	case nil:
		w.begin(nil)
		w.out.WriteString("null")
		return nil
	}
	return w.scalar(n)
}

func (w *jsonWriter) scalar(n ast.Node) error {
	var v any
	switch n := n.(type) {
	case *ast.NullNode:
	case *ast.StringNode:
		v = n.Value
	case *ast.LiteralNode:
		v = n.Value.Value
	case *ast.IntegerNode:
		v = n.Value
	case *ast.BoolNode:
		v = n.Value
	case *ast.FloatNode:
		v = n.Value
	case *ast.NanNode:
		v = "NaN" // as ProtoJSON writes it
	case *ast.InfinityNode:
		if v = "Infinity"; n.Value < 0 {
			v = "-Infinity"
		}
	default:
		return at(n.GetToken(), fmt.Sprintf("a %s is not supported", n.Type()))
	}
	w.begin(n.GetToken())
	return w.literal(n, v)
}

func (w *jsonWriter) literal(n ast.Node, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return at(n.GetToken(), err.Error())
	}
	w.out.Write(text)
	return nil
}

func (w *jsonWriter) mapping(t *token.Token, values []*ast.MappingValueNode, depth int) error {
	w.begin(t)
	w.out.WriteByte('{')
	for i, member := range values {
		if i > 0 {
			w.out.WriteByte(',')
		}
		name, err := key(member)
		if err != nil {
			return err
		}
		w.begin(member.Key.GetToken())
		if err := w.literal(member.Key, name); err != nil {
			return err
		}
		w.out.WriteByte(':')
		if err := w.value(member.Value, depth+1); err != nil {
			return err
		}
	}
	w.out.WriteByte('}')
	return nil
}

// key is a key as text: a node may have the id 1, true or null.
func key(member *ast.MappingValueNode) (string, error) {
	switch k := member.Key.(type) {
	case *ast.StringNode:
		return k.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.NanNode, *ast.InfinityNode:
		return k.GetToken().Value, nil
	}
	return "", at(member.Key.GetToken(), fmt.Sprintf("a %s is not supported as a key", member.Key.Type()))
}

func (w *jsonWriter) sequence(n *ast.SequenceNode, depth int) error {
	w.begin(n.GetToken())
	w.out.WriteByte('[')
	for i, element := range n.Values {
		if i > 0 {
			w.out.WriteByte(',')
		}
		if err := w.value(element, depth+1); err != nil {
			return err
		}
	}
	w.out.WriteByte(']')
	return nil
}
