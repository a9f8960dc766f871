package document

import (
	"encoding/binary"
	"strconv"

	"github.com/zeebo/xxh3"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// The kinds of lexemes. They are stored.
const (
	kindWorkflow = 'w'
	kindState    = 's'
	kindKey      = 'k'
	kindString   = 't'
	kindNumber   = 'n'
	kindBool     = 'b'
)

const digits = "0123456789abcdefghijklmnopqrstuv"

// lexeme is '=', the kind, and a hash of the parts in 13 digits of base 32.
func lexeme(kind byte, parts ...string) string {
	var b []byte
	for _, part := range parts {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	hash := xxh3.Hash(b)
	out := [15]byte{'=', kind}
	for i := len(out) - 1; i > 1; i-- {
		out[i] = digits[hash&31]
		hash >>= 5
	}
	return string(out[:])
}

// WorkflowLexeme stands for all instances of a workflow.
func WorkflowLexeme(name string) string { return lexeme(kindWorkflow, name) }

// StateLexeme stands for all instances in a state.
func StateLexeme(state wigglev1.InstanceState) string {
	return lexeme(kindState, strconv.Itoa(int(state)))
}

// KeyLexeme stands for all instances with a key.
func KeyLexeme(key string) string { return lexeme(kindKey, key) }

// StringLexeme stands for all contexts with a string at a JSON Pointer.
func StringLexeme(path, value string) string { return lexeme(kindString, path, value) }

// NumberLexeme stands for all contexts with a number at a JSON Pointer. Numbers are the same that are the same as
// float64.
func NumberLexeme(path string, value float64) string {
	if value == 0 {
		value = 0 // not -0
	}
	return lexeme(kindNumber, path, strconv.FormatFloat(value, 'g', -1, 64))
}

// BoolLexeme stands for all contexts with a truth value at a JSON Pointer.
func BoolLexeme(path string, value bool) string {
	return lexeme(kindBool, path, strconv.FormatBool(value))
}
