package secrets

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// Kind is where something came out.
type Kind string

// The kinds.
const (
	Logs         Kind = "log"
	Outputs      Kind = "output of a command"
	Traces       Kind = "spans"
	Metrics      Kind = "metrics"
	Answers      Kind = "answer"
	Errors       Kind = "error"
	Processes    Kind = "list of processes"
	Messages     Kind = "NATS"
	Rows         Kind = "row"
	DatabaseLogs Kind = "log of PostgreSQL"
)

// Kinds are all of them.
func Kinds() []Kind {
	return []Kind{Logs, Outputs, Traces, Metrics, Answers, Errors, Processes, Messages, Rows, DatabaseLogs}
}

const (
	// shortest is the length from which a form of a secret is looked for: less could be anything.
	shortest = 8
	// around is how much of what stands around a secret a finding shows, on each side.
	around = 60
)

// secret is one that was used.
type secret struct {
	name  string
	forms []string
	// kept is where it may be.
	kept []Kind
}

// piece is something that came out.
type piece struct {
	kind Kind
	name string
	text string
}

// Finding is a secret that came out.
type Finding struct {
	Secret string
	Kind   Kind
	Where  string
	// Excerpt is what stands around it; secrets in it are masked.
	Excerpt string
}

// String is the finding on a line.
func (f Finding) String() string {
	return fmt.Sprintf("%s is in the %s %s: %s", f.Secret, f.Kind, f.Where, f.Excerpt)
}

// Search collects secrets and what came out, and finds the ones in the other. It is safe for concurrent use.
type Search struct {
	mu      sync.Mutex
	secrets []secret
	pieces  []piece
	seen    map[piece]bool
}

// Use notes a secret, which may come out in no other kind than those of kept. Of a credential it is the part behind its public
// id that is secret. It returns the text.
func (s *Search) Use(name, text string, kept ...Kind) string {
	hidden := text
	if parts := strings.SplitN(text, "_", 3); len(parts) == 3 && len(parts[0]) == 3 {
		hidden = parts[2]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets = append(s.secrets, secret{name: name, forms: forms(hidden), kept: kept})
	return text
}

// Add notes what came out; what is there already counts once.
func (s *Search) Add(kind Kind, name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := piece{kind, name, text}
	if s.seen[p] || text == "" {
		return
	}
	if s.seen == nil {
		s.seen = map[piece]bool{}
	}
	s.seen[p] = true
	s.pieces = append(s.pieces, p)
}

// Has tells whether a text came out in a kind: to know that the search looks where it should.
func (s *Search) Has(kind Kind, text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.pieces, func(p piece) bool { return p.kind == kind && strings.Contains(p.text, text) })
}

// Size is how much came out, in bytes by kind, and how many secrets there are.
func (s *Search) Size() (bytes map[Kind]int, secrets int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes = map[Kind]int{}
	for _, p := range s.pieces {
		bytes[p.kind] += len(p.text)
	}
	return bytes, len(s.secrets)
}

// Find looks for every secret in everything; of one secret in one place it tells the first.
func (s *Search) Find() []Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Finding
	for _, p := range s.pieces {
		for _, secret := range s.secrets {
			if slices.Contains(secret.kept, p.kind) {
				continue
			}
			for _, form := range secret.forms {
				if at := strings.Index(p.text, form); at >= 0 {
					found = append(found, Finding{secret.name, p.kind, p.name, s.excerpt(p.text, at, at+len(form))})
					break
				}
			}
		}
	}
	return found
}

// excerpt is a text around a place, on a line and without secrets.
func (s *Search) excerpt(text string, from, to int) string {
	start, end := max(0, from-around), min(len(text), to+around)
	before, after := text[start:from], text[to:end]
	for _, secret := range s.secrets {
		for _, form := range secret.forms {
			before, after = strings.ReplaceAll(before, form, "***"), strings.ReplaceAll(after, form, "***")
		}
	}
	line := func(part string) string {
		return strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return ' '
			}
			return r
		}, part)
	}
	return line(before) + "[***]" + line(after)
}

// forms are how a text may be written.
func forms(text string) []string {
	list := []string{
		text, strings.ToLower(text), url.QueryEscape(text), url.PathEscape(text), url.UserPassword("u", text).String()[len("u:"):],
		hex.EncodeToString([]byte(text)), strings.ToUpper(hex.EncodeToString([]byte(text))),
	}
	if quoted, err := json.Marshal(text); err == nil {
		list = append(list, strings.Trim(string(quoted), `"`))
	}
	// In base64 a text looks in one of three ways, by where it begins within three bytes; the characters at its ends depend on
	// what stands beside it.
	for shift := range 3 {
		padded := append(make([]byte, shift), text...)
		whole := padded[:len(padded)/3*3]
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			encoded := encoding.EncodeToString(whole)
			list = append(list, encoded[min(len(encoded), (shift*8+5)/6):])
		}
	}
	list = slices.DeleteFunc(list, func(form string) bool { return len(form) < shortest })
	slices.Sort(list)
	return slices.Compact(list)
}
