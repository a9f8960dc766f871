package settings

import (
	"slices"
	"strings"
)

// Row describes one setting for the documentation.
type Row struct {
	// Name is the variable.
	Name string
	// Type is text, list, secret, switch, integer, number, size, duration, or external.
	Type string
	// Default is what holds when the variable is not set, as it would be written.
	Default string
	// Unit is what a number counts.
	Unit string
	// Range is what a number allows. Empty: anything that is not negative.
	Range string
	// OneOf are the values that a text allows. Empty: any.
	OneOf []string
	// Doc says what the setting does.
	Doc string
	// Example is a value for show.
	Example string
	// Required is true if the process does not start without it.
	Required bool
	// Secret is true if the value is never shown.
	Secret bool
	// Sections are whose setting it is: services, or what services share.
	Sections []string
}

// same reports whether two declarations say the same.
func (r Row) same(other Row) bool {
	return r.Name == other.Name && r.Type == other.Type && r.Default == other.Default && r.Unit == other.Unit &&
		r.Range == other.Range && slices.Equal(r.OneOf, other.OneOf) && r.Doc == other.Doc &&
		r.Required == other.Required && r.Secret == other.Secret
}

// hint says what to set it to.
func (r Row) hint() string {
	if r.Example != "" {
		return r.Doc + " For example " + r.Example
	}
	return r.Doc
}

// Table returns the settings by name, without those that are external and have no documentation.
func (r *Registry) Table() []Row {
	rows := make([]Row, 0, len(r.settings)+len(r.external))
	for _, s := range r.settings {
		rows = append(rows, s.row)
	}
	for _, row := range r.external {
		if row.Doc != "" {
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return strings.Compare(a.Name, b.Name) })
	return rows
}

// Markdown returns the rows as a table.
func Markdown(rows []Row) string {
	var text strings.Builder
	text.WriteString("| name | type | default | used by | what it does |\n|---|---|---|---|---|\n")
	for _, row := range rows {
		kind := row.Type
		if row.Unit != "" {
			kind += " in " + row.Unit
		}
		if len(row.OneOf) > 0 {
			kind = strings.Join(row.OneOf, ", ")
		}
		if row.Range != "" {
			kind += ", " + row.Range
		}
		fallback := code(row.Default)
		if row.Required {
			fallback = "required"
		}
		doc := row.Doc
		if row.Example != "" {
			doc += " Example: " + code(row.Example)
		}
		cells := []string{code(row.Name), kind, fallback, strings.Join(row.Sections, ", "), doc}
		for i, cell := range cells {
			cells[i] = strings.ReplaceAll(strings.ReplaceAll(cell, "|", `\|`), "\n", " ")
		}
		text.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	return text.String()
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}
