package shell

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table prints rows in columns.
type Table struct{ w *tabwriter.Writer }

// NewTable makes a table, with heads if there are any.
func NewTable(w io.Writer, heads ...string) *Table {
	t := &Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if len(heads) > 0 {
		t.Row(heads...)
	}
	return t
}

// Table makes a table where text goes.
func (s *Shell) Table(heads ...string) *Table { return NewTable(s.Out(), heads...) }

// Row adds a row.
func (t *Table) Row(cells ...string) {
	// The last column is not padded, so that no line ends in spaces.
	_, _ = fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

// Flush prints the rows.
func (t *Table) Flush() { _ = t.w.Flush() }
