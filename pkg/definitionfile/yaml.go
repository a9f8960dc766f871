package definitionfile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// maxDepth bounds how deep values stand within each other. A definition needs
// nine levels.
const maxDepth = 32

// fromYAML reads a definition by way of its JSON form, and takes the places of
// faults back to the YAML.
func fromYAML(text []byte) (*wigglev1.Definition, error) {
	body, err := parseYAML(string(text))
	if err != nil {
		return nil, err
	}
	w := &jsonWriter{}
	if err := w.value(body, 0); err != nil {
		return nil, err
	}
	d, err := definition.FromJSON(w.out.Bytes())
	if syntax, ok := errors.AsType[*definition.SyntaxError](err); ok {
		return nil, w.located(syntax)
	}
	return d, err
}

// parseYAML parses a file of one document.
func parseYAML(text string) (ast.Node, error) {
	tokens := lexer.Tokenize(text)
	if err := checkTokens(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, parserFault(err)
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch doc.Body.(type) {
		case nil, *ast.CommentGroupNode, *ast.CommentNode:
			continue
		}
		if body != nil {
			return nil, at(doc.Body.GetToken(), "there is a second document; a file holds one definition")
		}
		body = doc.Body
	}
	if body == nil {
		return nil, fault(1, 1, "the file is empty")
	}
	return body, nil
}

// parserFault takes the place out of an error of the YAML parser.
func parserFault(err error) error {
	var syntax yaml.Error
	if errors.As(err, &syntax) && syntax.GetToken() != nil {
		return at(syntax.GetToken(), bounded(syntax.GetMessage()))
	}
	return fault(0, 0, bounded(err.Error()))
}

func bounded(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "..."
}

// maxMessage bounds a message of the YAML parser, which may repeat the text.
const maxMessage = 300

// at is a fault at a token.
func at(t *token.Token, message string) *definition.SyntaxError {
	if t == nil || t.Position == nil {
		return fault(0, 0, message)
	}
	return fault(t.Position.Line, t.Position.Column, message)
}

// refused are the tokens of what is not read, and why.
var refused = map[token.Type]string{
	token.AnchorType:     "anchors are not supported: write the value out",
	token.AliasType:      "aliases are not supported: write the value out, or quote a text that begins with \"*\"",
	token.MergeKeyType:   "merge keys are not supported: write the fields out",
	token.TagType:        "tags are not supported; quote a text that begins with \"!\"",
	token.DirectiveType:  "directives are not supported",
	token.MappingKeyType: "complex keys (\"?\") are not supported",
}

// checkTokens refuses what is not read, and nesting that would use up the stack
// of the parser, which recurses. It looks at tokens, before the parser does.
func checkTokens(tokens token.Tokens) error {
	open := 0             // brackets and braces
	entries, line := 0, 0 // "- - -" nests on one line
	for _, t := range tokens {
		if message, ok := refused[t.Type]; ok {
			return at(t, message)
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			open++
		case token.SequenceEndType, token.MappingEndType:
			open--
		case token.SequenceEntryType:
			if t.Position.Line != line {
				entries, line = 0, t.Position.Line
			}
			entries++
		}
		if open > maxDepth || entries > maxDepth || t.Position.IndentLevel > 2*maxDepth {
			return at(t, fmt.Sprintf("values stand more than %d deep within each other", maxDepth))
		}
	}
	return nil
}

// located takes faults in the JSON to their places in the YAML.
func (w *jsonWriter) located(err *definition.SyntaxError) *definition.SyntaxError {
	faults := make([]definition.SyntaxFault, len(err.Faults))
	for i, f := range err.Faults {
		place := position{}
		if f.Line > 0 && f.Line <= len(w.places) {
			place = w.places[f.Line-1]
		}
		if strings.HasPrefix(f.Message, "invalid value for string field") {
			f.Message += "; put it in quotes"
		}
		faults[i] = definition.SyntaxFault{Line: place.line, Column: place.column, Message: f.Message}
	}
	return &definition.SyntaxError{Faults: faults}
}
