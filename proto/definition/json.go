package definition

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// SyntaxError tells why text is not the JSON form of a definition.
type SyntaxError struct {
	// Faults, in the order of the text. At least one.
	Faults []SyntaxFault
}

// SyntaxFault is one place where text is not the JSON form of a definition.
type SyntaxFault struct {
	// Line and Column count from 1, columns in bytes. Both are 0 when the place
	// is not known.
	Line, Column int
	// Message says what is wrong there.
	Message string
}

// Error lists the faults, a line each when there are several.
func (e *SyntaxError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// String is the fault with its place.
func (f SyntaxFault) String() string {
	if f.Line == 0 {
		return f.Message
	}
	return fmt.Sprintf("line %d, column %d: %s", f.Line, f.Column, f.Message)
}

// FromJSON reads the JSON form of a definition: ProtoJSON, with field names as in
// the protos (for_each) or in lower camel case (forEach). It refuses unknown
// fields, duplicate keys and anything after the definition with a [*SyntaxError]
// that names the place. It does not validate; see [Validate].
func FromJSON(data []byte) (*wigglev1.Definition, error) {
	d := &wigglev1.Definition{}
	if faults := checkJSON(data, d.ProtoReflect().Descriptor()); len(faults) > 0 {
		return nil, &SyntaxError{Faults: faults}
	}
	if err := protojson.Unmarshal(data, d); err != nil {
		return nil, &SyntaxError{Faults: []SyntaxFault{protojsonFault(err)}}
	}
	return d, nil
}

// ToJSON writes the JSON form of a definition, indented, with field names as in
// the protos. The same definition always gives the same bytes. It fails for a
// definition that ProtoJSON cannot write: invalid UTF-8, a duration out of range.
func ToJSON(d *wigglev1.Definition) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("write a definition as JSON: %s", plainError(err))
	}
	// protojson varies its white space on purpose. Indenting sets it.
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("write a definition as JSON: %w", err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// maxMessage bounds a message of protojson, which repeats the text it refuses.
const maxMessage = 300

var protojsonPlace = regexp.MustCompile(`(?:syntax error )?\(line (\d+):(\d+)\): *`)

// protojsonFault takes the place out of an error of protojson. Its text is not
// part of its interface; without a place in it the fault has none.
func protojsonFault(err error) SyntaxFault {
	message := plainError(err)
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "..."
	}
	at := protojsonPlace.FindStringSubmatchIndex(message)
	if at == nil {
		return SyntaxFault{Message: message}
	}
	line, errLine := strconv.Atoi(message[at[2]:at[3]])
	column, errColumn := strconv.Atoi(message[at[4]:at[5]])
	if errLine != nil || errColumn != nil {
		return SyntaxFault{Message: message}
	}
	return SyntaxFault{Line: line, Column: column, Message: message[:at[0]] + message[at[1]:]}
}

// plainError is the text of an error of the protobuf runtime, which varies the
// space in its prefix on purpose, without that prefix.
func plainError(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return strings.TrimPrefix(text, "proto: ")
}
