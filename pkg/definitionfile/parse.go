package definitionfile

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// MaxBytes bounds a file: a definition of the largest size (1 MiB) with
// indentation and comments.
const MaxBytes = 4 << 20

// Error tells why a file is not a definition.
type Error struct {
	// File is the name that was given to [Parse].
	File string
	// Faults with their places in the file, at least one.
	Faults []definition.SyntaxFault
}

// Error lists the faults, a line each, as "file:line:column: message".
func (e *Error) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		if f.Line == 0 {
			lines[i] = fmt.Sprintf("%s: %s", e.File, f.Message)
			continue
		}
		lines[i] = fmt.Sprintf("%s:%d:%d: %s", e.File, f.Line, f.Column, f.Message)
	}
	return strings.Join(lines, "\n")
}

// Parse reads a definition from a file's text; the name's ending says which kind
// it is: .yaml, .yml or .json. Every error is an [*Error].
func Parse(name string, text []byte) (*wigglev1.Definition, error) {
	read := definition.FromJSON
	switch strings.ToLower(filepath.Ext(name)) {
	case ".json":
	case ".yaml", ".yml":
		read = fromYAML
	default:
		return nil, failed(name, fault(0, 0, "the name must end in .yaml, .yml or .json"))
	}
	if len(text) > MaxBytes {
		return nil, failed(name, fault(0, 0, fmt.Sprintf("the file has %d bytes; the limit is %d", len(text), MaxBytes)))
	}
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	if at := invalidText(text); at >= 0 {
		line := bytes.Count(text[:at], []byte("\n")) + 1
		column := at - bytes.LastIndexByte(text[:at], '\n')
		return nil, failed(name, fault(line, column, "the text is not UTF-8, or has a NUL character"))
	}
	d, err := read(text)
	if err != nil {
		return nil, failed(name, err)
	}
	return d, nil
}

// invalidText is the offset of the first byte that is not text, or -1.
func invalidText(text []byte) int {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if r == 0 || (r == utf8.RuneError && size == 1) {
			return i
		}
		i += size
	}
	return -1
}

func fault(line, column int, message string) *definition.SyntaxError {
	return &definition.SyntaxError{Faults: []definition.SyntaxFault{{Line: line, Column: column, Message: message}}}
}

func failed(name string, err error) *Error {
	if syntax, ok := errors.AsType[*definition.SyntaxError](err); ok {
		return &Error{File: name, Faults: syntax.Faults}
	}
	return &Error{File: name, Faults: []definition.SyntaxFault{{Message: err.Error()}}}
}
