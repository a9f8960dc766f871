package settings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Prefix begins the name of every setting.
const Prefix = "WIGGLE_"

// Registry holds the declarations of a process's settings. It is filled and loaded by one goroutine.
type Registry struct {
	section  string
	settings []*setting
	byName   map[string]*setting
	external []Row
	allowed  map[string]bool
	checks   []func() error
	mistakes []Problem // of declarations
}

// setting is one declaration, with every place that wants its value.
type setting struct {
	row      Row
	required bool
	oneOf    []string
	low      *bound
	high     *bound
	parse    func(s *setting, text string) error // checks the value and stores it in the places
	assigns  []func(value any)
}

// bound is an end of a range, in the unit of the setting's type and as people write it.
type bound struct {
	value float64
	text  string
}

// Option narrows a declaration.
type Option func(*setting)

// Required refuses to start without the setting.
func Required() Option { return func(s *setting) { s.required = true } }

// OneOf allows only the given values.
func OneOf(values ...string) Option { return func(s *setting) { s.oneOf = values } }

// Between allows an integer, a size or a number only from low to high.
func Between(low, high float64) Option {
	return func(s *setting) { s.low, s.high = numberBound(low), numberBound(high) }
}

// AtLeast allows an integer, a size or a number only from low on.
func AtLeast(low float64) Option { return func(s *setting) { s.low = numberBound(low) } }

// Within allows a duration only from low to high.
func Within(low, high time.Duration) Option {
	return func(s *setting) {
		s.low = &bound{value: float64(low), text: formatDuration(s.row.Name, low)}
		s.high = &bound{value: float64(high), text: formatDuration(s.row.Name, high)}
	}
}

// Hidden never shows the value: for what is no Secret and may hold one, such as URLs.
func Hidden() Option { return func(s *setting) { s.row.Secret = true } }

// Example shows a value in the documentation, for settings without a telling default.
func Example(text string) Option { return func(s *setting) { s.row.Example = text } }

// Unit tells what a number counts, where its name does not.
func Unit(text string) Option { return func(s *setting) { s.row.Unit = text } }

// NewRegistry returns a registry without settings.
func NewRegistry() *Registry {
	return &Registry{byName: map[string]*setting{}, allowed: map[string]bool{}}
}

// Section names whose settings are declared from here on, for the documentation: a service, or what services share.
func (r *Registry) Section(name string) { r.section = name }

// External makes a name known that another package reads, such as those of the topology. A name that ends in * stands for
// all names that begin so. With an empty doc it stays out of the documentation, as for settings that were removed and
// whose reader says so.
func (r *Registry) External(name, doc string) {
	r.external = append(r.external, Row{Name: name, Type: "external", Doc: doc, Sections: r.sections()})
}

// Allow makes names known that have a meaning only for this installation, such as those that a topology document uses as
// ${WIGGLE_DB_PASSWORD}.
func (r *Registry) Allow(names ...string) {
	for _, name := range names {
		r.allowed[name] = true
	}
}

// Check adds a check of settings against each other. It runs at the end of Load, if all values have parsed.
func (r *Registry) Check(check func() error) { r.checks = append(r.checks, check) }

// String declares a text.
func (r *Registry) String(target *string, name, fallback, doc string, options ...Option) {
	declare(r, target, Row{Name: name, Type: "text", Default: fallback, Doc: doc}, fallback, parseText, options)
}

// Strings declares a list of texts with commas between them. Spaces around an entry and empty entries are dropped.
func (r *Registry) Strings(target *[]string, name string, fallback []string, doc string, options ...Option) {
	row := Row{Name: name, Type: "list", Default: strings.Join(fallback, ","), Doc: doc}
	declare(r, target, row, fallback, parseList, options)
}

// Ints declares a list of integers with commas between them, as Strings does of texts. Without a range none is negative.
func (r *Registry) Ints(target *[]int, name string, fallback []int, doc string, options ...Option) {
	texts := make([]string, len(fallback))
	for i, n := range fallback {
		texts[i] = strconv.Itoa(n)
	}
	declare(r, target, Row{Name: name, Type: "list", Default: strings.Join(texts, ","), Doc: doc}, fallback, parseInts, options)
}

// Secret declares a text that is never shown.
func (r *Registry) Secret(target *Secret, name, doc string, options ...Option) {
	declare(r, target, Row{Name: name, Type: "secret", Doc: doc, Secret: true}, "", parseSecret, options)
}

// Bool declares a switch: true or false, on or off, yes or no, 1 or 0.
func (r *Registry) Bool(target *bool, name string, fallback bool, doc string, options ...Option) {
	row := Row{Name: name, Type: "switch", Default: fmt.Sprint(fallback), Doc: doc}
	declare(r, target, row, fallback, parseBool, options)
}

// Int declares an integer. Without a range it is not negative.
func (r *Registry) Int(target *int, name string, fallback int, doc string, options ...Option) {
	row := Row{Name: name, Type: "integer", Default: fmt.Sprint(fallback), Doc: doc}
	declare(r, target, row, fallback, parseInt, options)
}

// Float declares a number. Without a range it is not negative.
func (r *Registry) Float(target *float64, name string, fallback float64, doc string, options ...Option) {
	row := Row{Name: name, Type: "number", Default: fmt.Sprint(fallback), Doc: doc}
	declare(r, target, row, fallback, parseFloat, options)
}

// Bytes declares a size in bytes, which may be written with KiB, MiB or GiB. Without a range it is not negative.
func (r *Registry) Bytes(target *int64, name string, fallback int64, doc string, options ...Option) {
	row := Row{Name: name, Type: "size", Unit: "bytes", Default: formatBytes(fallback), Doc: doc}
	declare(r, target, row, fallback, parseBytes, options)
}

// Duration declares a duration, in the unit that its name ends in ([package settings]). Without a range it is not
// negative.
func (r *Registry) Duration(target *time.Duration, name string, fallback time.Duration, doc string, options ...Option) {
	row := Row{Name: name, Type: "duration", Unit: durationUnit(name), Default: formatDuration(name, fallback), Doc: doc}
	declare(r, target, row, fallback, parseDuration, options)
}

// declare adds a setting, or a place for one that another service has declared in the same words.
func declare[T any](
	r *Registry, target *T, row Row, fallback T, parse func(s *setting, text string) (T, error), options []Option,
) {
	*target = fallback
	row.Sections = r.sections()
	made := &setting{row: row}
	for _, option := range options {
		option(made)
	}
	made.row.Required, made.row.OneOf, made.row.Range = made.required, made.oneOf, made.rangeText()
	assign := func(value any) { *target, _ = value.(T) }
	made.assigns = []func(any){assign}
	made.parse = func(s *setting, text string) error {
		value, err := parse(s, text)
		if err != nil {
			return err
		}
		for _, assign := range s.assigns {
			assign(value)
		}
		return nil
	}
	r.checkDeclaration(made, func(text string) error {
		_, err := parse(made, text)
		return err
	})
	known, ok := r.byName[row.Name]
	if !ok {
		r.byName[row.Name] = made
		r.settings = append(r.settings, made)
		return
	}
	if !known.row.same(made.row) {
		r.mistakes = append(r.mistakes, Problem{row.Name, "is declared twice, and not in the same way"})
		return
	}
	known.assigns = append(known.assigns, assign)
	for _, section := range made.row.Sections {
		if !slices.Contains(known.row.Sections, section) {
			known.row.Sections = append(known.row.Sections, section)
		}
	}
}

// checkDeclaration holds declarations to what the documentation and the error messages need.
func (r *Registry) checkDeclaration(s *setting, parse func(text string) error) {
	if !strings.HasPrefix(s.row.Name, Prefix) || strings.ToUpper(s.row.Name) != s.row.Name {
		r.mistakes = append(r.mistakes, Problem{s.row.Name, "is not a name in capitals that begins with " + Prefix})
	}
	if s.row.Doc == "" {
		r.mistakes = append(r.mistakes, Problem{s.row.Name, "is declared without a word on what it does"})
	}
	if s.row.Default == "" || s.required {
		return
	}
	if err := parse(s.row.Default); err != nil {
		r.mistakes = append(r.mistakes, Problem{s.row.Name, "has a default that it does not allow: " + err.Error()})
	}
}

func (r *Registry) sections() []string {
	if r.section == "" {
		return nil
	}
	return []string{r.section}
}
