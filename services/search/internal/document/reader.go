package document

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// reader gathers what a context says. It reads token by token: how deep or large the context is costs no more than its
// bytes.
type reader struct {
	text    strings.Builder
	lexemes []string
	numbers map[string]float64
	values  int // how many may be in conditions so far
	open    []level
}

// level is an object or array that the reader stands in.
type level struct {
	path   string // its JSON Pointer
	known  bool   // the path is within bounds
	object bool
	next   int    // index of the next element
	name   string // of the value that comes next, in an object
	named  bool   // name has been read
}

// read reads a context up to its end, its first mistake, or the bound of the text.
func (r *reader) read(data []byte) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	for r.text.Len() < MaxTextBytes {
		token, err := decoder.Token()
		if err != nil {
			return
		}
		if !r.take(token) {
			return
		}
	}
}

// take takes one token, and tells whether to go on.
func (r *reader) take(token json.Token) bool {
	if top := r.top(); top != nil && top.object && !top.named {
		if name, ok := token.(string); ok {
			top.name, top.named = name, true
			return true
		}
	}
	switch v := token.(type) {
	case json.Delim:
		return r.delimiter(v)
	case string:
		r.str(v)
	case json.Number:
		r.number(v)
	case bool:
		path, ok := r.path()
		r.attribute(ok, func() string { return BoolLexeme(path, v) })
	default: // null
		r.path()
	}
	return true
}

func (r *reader) top() *level {
	if len(r.open) == 0 {
		return nil
	}
	return &r.open[len(r.open)-1]
}

func (r *reader) delimiter(d json.Delim) bool {
	if d == '}' || d == ']' {
		r.open = r.open[:len(r.open)-1]
		return true
	}
	if len(r.open) == maxDepth {
		return false
	}
	path, ok := r.path()
	r.open = append(r.open, level{path: path, known: ok, object: d == '{'})
	return true
}

// path is the JSON Pointer of the value that comes now, and whether it is within bounds. It moves on to the next.
func (r *reader) path() (string, bool) {
	top := r.top()
	if top == nil {
		return "", true
	}
	var last string
	if top.object {
		last, top.named = top.name, false
	} else {
		last = strconv.Itoa(top.next)
		top.next++
	}
	if !top.known || len(top.path)+1+len(last) > MaxPathBytes {
		return "", false
	}
	path := top.path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(last)
	return path, len(path) <= MaxPathBytes && !strings.ContainsRune(path, 0)
}

// attribute takes a value for conditions, if there is room. The whole context, which has no path, is none.
func (r *reader) attribute(ok bool, lexeme func() string) {
	if !ok || len(r.open) == 0 || r.values == MaxAttributes {
		return
	}
	r.values++
	if l := lexeme(); !slices.Contains(r.lexemes, l) { // a name may be there twice
		r.lexemes = append(r.lexemes, l)
	}
}

func (r *reader) str(v string) {
	path, ok := r.path()
	r.attribute(ok && len(v) <= MaxValueBytes, func() string { return StringLexeme(path, v) })
	r.write(clean(v))
}

func (r *reader) number(v json.Number) {
	path, ok := r.path()
	if f, err := v.Float64(); err == nil {
		r.attribute(ok, func() string {
			if r.numbers == nil {
				r.numbers = map[string]float64{}
			}
			r.numbers[path] = f
			return NumberLexeme(path, f)
		})
	}
	r.write(string(v))
}

// write appends to the text, up to its bound.
func (r *reader) write(s string) {
	if s == "" {
		return
	}
	if r.text.Len() > 0 {
		r.text.WriteByte('\n')
	}
	r.text.WriteString(cut(s, max(MaxTextBytes-r.text.Len(), 0)))
}
