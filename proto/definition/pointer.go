package definition

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Pointer is a JSON Pointer (RFC 6901), parsed.
type Pointer struct {
	// Text is the pointer as the definition writes it, such as "/order/items".
	Text string
	// Tokens are its reference tokens, unescaped. None means the whole document.
	Tokens []string
}

// ParsePointer parses a JSON Pointer. It refuses what RFC 6901 does: text that
// does not begin with a slash and is not empty, and a '~' not followed by 0 or 1.
func ParsePointer(text string) (*Pointer, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("is not valid UTF-8")
	}
	p := &Pointer{Text: text}
	if text == "" {
		return p, nil
	}
	if text[0] != '/' {
		return nil, fmt.Errorf("%s must begin with \"/\", or be empty for the whole context", quote(text))
	}
	for token := range strings.SplitSeq(text[1:], "/") {
		for i := range len(token) {
			if token[i] == '~' && (i+1 == len(token) || (token[i+1] != '0' && token[i+1] != '1')) {
				return nil, fmt.Errorf("%s has a \"~\" that is not part of \"~0\" or \"~1\"", quote(text))
			}
		}
		// The order matters: "~01" is the escaped "~1", not a slash.
		token = strings.ReplaceAll(token, "~1", "/")
		p.Tokens = append(p.Tokens, strings.ReplaceAll(token, "~0", "~"))
	}
	return p, nil
}
