package settings

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/wiggle-run/wiggle/pkg/spelling"
)

// Problem is one thing that is wrong with the configuration.
type Problem struct {
	// Name is the variable. Empty for what concerns several.
	Name string
	// Message says what is wrong and what would be right. It holds no secret.
	Message string
}

// Error is every problem of a configuration.
type Error struct{ Problems []Problem }

// Error lists the problems, one a line.
func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString("the configuration is not right:")
	for _, p := range e.Problems {
		text.WriteString("\n  " + strings.TrimSpace(p.Name+" "+p.Message))
	}
	return text.String()
}

// Value is a setting as it is after Load, for the log. A secret is hidden.
type Value struct {
	// Name is the variable.
	Name string
	// Text is the value, as it was set or the default.
	Text string
	// Set is false for a default.
	Set bool
}

// Values are the settings in the order of their declaration.
type Values []Value

// LogValue logs the settings that differ from their defaults.
func (v Values) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, value := range v {
		if value.Set {
			attrs = append(attrs, slog.String(value.Name, value.Text))
		}
	}
	return slog.GroupValue(attrs...)
}

// Load reads an environment as os.Environ returns it, and stores every value in the places that were declared for it.
// Its error is an *Error with every problem there is; the places of settings with problems keep their defaults.
func (r *Registry) Load(environ []string) (Values, error) {
	env := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, Prefix) {
			env[name] = value
		}
	}
	problems := slices.Clone(r.mistakes)
	values := make(Values, 0, len(r.settings))
	for _, s := range r.settings {
		text := env[s.row.Name]
		values = append(values, s.value(text))
		if text == "" {
			if s.required {
				problems = append(problems, Problem{s.row.Name, "is not set: " + s.row.hint()})
			}
			continue
		}
		if err := s.parse(s, text); err != nil {
			problems = append(problems, Problem{s.row.Name, err.Error()})
		}
	}
	problems = append(problems, r.unknown(env)...)
	if len(problems) == 0 {
		for _, check := range r.checks {
			err := check()
			if err == nil {
				continue
			}
			// Services that share a setting check it alike.
			if p := (Problem{Message: err.Error()}); !slices.Contains(problems, p) {
				problems = append(problems, p)
			}
		}
	}
	if len(problems) > 0 {
		return values, &Error{Problems: problems}
	}
	return values, nil
}

func (s *setting) value(text string) Value {
	switch {
	case text == "":
		return Value{Name: s.row.Name, Text: s.row.Default}
	case s.row.Secret:
		return Value{Name: s.row.Name, Text: redacted, Set: true}
	}
	return Value{Name: s.row.Name, Text: text, Set: true}
}

// unknown finds the names that nobody declared, in alphabetical order. Empty ones count: they are misspelt all the same.
func (r *Registry) unknown(env map[string]string) []Problem {
	var names []string
	for name := range env {
		if !r.knows(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	problems := make([]Problem, 0, len(names))
	for _, name := range names {
		message := "is not a setting of this process"
		if nearest := r.nearest(name); nearest != "" {
			message += fmt.Sprintf("; did you mean %s?", nearest)
		}
		problems = append(problems, Problem{name, message})
	}
	return problems
}

func (r *Registry) knows(name string) bool {
	if r.byName[name] != nil || r.allowed[name] {
		return true
	}
	return slices.ContainsFunc(r.external, func(row Row) bool {
		start, open := strings.CutSuffix(row.Name, "*")
		return row.Name == name || open && strings.HasPrefix(name, start)
	})
}

// nearest returns the known name that a misspelt one is most like, nothing if none is much like it.
func (r *Registry) nearest(name string) string {
	best, bestDistance := "", max(2, (len(name)-len(Prefix))/4)+1
	consider := func(known string) {
		if strings.HasSuffix(known, "*") {
			return
		}
		if d := spelling.Distance(name, known); d < bestDistance {
			best, bestDistance = known, d
		}
	}
	for _, s := range r.settings {
		consider(s.row.Name)
	}
	for _, row := range r.external {
		consider(row.Name)
	}
	return best
}
