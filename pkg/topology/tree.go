package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// MaxDocumentBytes bounds the size of a document.
const MaxDocumentBytes = 1 << 20

// node is a JSON value that, unlike what json.Unmarshal makes, remembers the order and repetition of an object's keys.
type node struct {
	kind   nodeKind
	text   string // of a string or number
	fields []field
	items  []node
}

type field struct {
	name     string
	value    node
	repeated bool // in which case the first value is kept
}

type nodeKind string

const (
	kindObject nodeKind = "an object"
	kindArray  nodeKind = "a list"
	kindString nodeKind = "a string"
	kindNumber nodeKind = "a number"
	kindOther  nodeKind = "true, false or null"
)

// readTree reads a JSON document. Its error holds at most one character of it.
func readTree(doc []byte) (node, error) {
	if len(doc) > MaxDocumentBytes {
		return node{}, fmt.Errorf("is larger than %d bytes", MaxDocumentBytes)
	}
	if !utf8.Valid(doc) {
		return node{}, errors.New("is not UTF-8")
	}
	// The whole is checked first, as a Decoder that hands out tokens would report an error only after what is before it.
	var whole json.RawMessage
	if err := json.Unmarshal(doc, &whole); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			line, column := position(doc, syntax.Offset)
			return node{}, fmt.Errorf("line %d, column %d: %s", line, column, syntax.Error())
		}
		return node{}, errors.New("is not JSON")
	}
	decoder := json.NewDecoder(bytes.NewReader(doc))
	decoder.UseNumber()
	return readNode(decoder)
}

// position is where the byte before offset is, counted from 1; columns count characters.
func position(doc []byte, offset int64) (line, column int) {
	before := doc[:min(max(offset-1, 0), int64(len(doc)))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1
}

func readNode(decoder *json.Decoder) (node, error) {
	token, err := decoder.Token()
	if err != nil {
		return node{}, errors.New("is not JSON")
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return readObject(decoder)
		}
		return readArray(decoder)
	case string:
		return node{kind: kindString, text: t}, nil
	case json.Number:
		return node{kind: kindNumber, text: t.String()}, nil
	default:
		return node{kind: kindOther}, nil
	}
}

func readObject(decoder *json.Decoder) (node, error) {
	n := node{kind: kindObject}
	index := map[string]int{}
	for decoder.More() {
		key, err := readNode(decoder)
		if err != nil {
			return node{}, err
		}
		value, err := readNode(decoder)
		if err != nil {
			return node{}, err
		}
		if i, ok := index[key.text]; ok {
			n.fields[i].repeated = true
			continue
		}
		index[key.text] = len(n.fields)
		n.fields = append(n.fields, field{name: key.text, value: value})
	}
	_, err := decoder.Token()
	return n, err
}

func readArray(decoder *json.Decoder) (node, error) {
	n := node{kind: kindArray}
	for decoder.More() {
		item, err := readNode(decoder)
		if err != nil {
			return node{}, err
		}
		n.items = append(n.items, item)
	}
	_, err := decoder.Token()
	return n, err
}

// get returns the value of a field, or nil.
func (n *node) get(name string) *node {
	i := slices.IndexFunc(n.fields, func(f field) bool { return f.name == name })
	if i < 0 {
		return nil
	}
	return &n.fields[i].value
}
