package topology

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is a text that must not be seen. However it is printed, logged or marshalled it is "[redacted]", or "" if it
// is empty; only Reveal gives it away. The zero Secret is empty.
type Secret struct {
	// value is a pointer because fmt prints the fields of unexported struct members without asking their methods: of a
	// pointer it prints the address.
	value *string
}

// NewSecret returns a Secret that holds text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{value: &text}
}

// Reveal returns the text.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether the text is empty.
func (s Secret) IsZero() bool { return s.value == nil }

// String returns "[redacted]", or "" for an empty Secret.
func (s Secret) String() string {
	if s.value == nil {
		return ""
	}
	return redacted
}

// GoString is String.
func (s Secret) GoString() string { return s.String() }

// Format writes String whatever the verb: those that do not fit a string would otherwise print what is inside.
func (s Secret) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, s.String()) }

// MarshalText returns String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Credential is a Secret in a Document. It prints and logs as a Secret does, but marshals to JSON in clear, as the document
// is the one place where it belongs.
type Credential struct{ Secret }

// NewCredential returns a Credential that holds text, which may contain ${NAME}.
func NewCredential(text string) Credential { return Credential{NewSecret(text)} }

// MarshalJSON returns the text as a JSON string, in clear.
func (c Credential) MarshalJSON() ([]byte, error) { return json.Marshal(c.Reveal()) }

// UnmarshalJSON reads a JSON string.
func (c *Credential) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	*c = NewCredential(text)
	return nil
}
