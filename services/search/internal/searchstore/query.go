package searchstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
)

// Words are the words of a query as the database reads them.
type Words struct {
	// Query is their tsquery. Empty: there are none that count.
	Query string
	// Nodes is how many words and operators it has.
	Nodes int
	// Ranked tells that some words must be there, so that matches differ in how good they are. Without, as with words that
	// must not be there, the newest come first.
	Ranked bool
}

// ErrUnreadable: PostgreSQL cannot read a query, as of one that nests without end.
var ErrUnreadable = errors.New("the query cannot be read")

// Parse reads a query as search engines take it: words, "phrases", or, -without. Nearly whatever stands there can be read;
// else the error is [ErrUnreadable].
func (s *Store) Parse(ctx context.Context, text string) (w Words, err error) {
	text = strings.ReplaceAll(text, "\x00", " ")
	const sql = `select q::text, numnode(q), querytree(q) not in ('', 'T') from (select websearch_to_tsquery($1::text::regconfig, $2) q) p`
	err = s.read(ctx, "read a query", func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, sql, s.language, text).Scan(&w.Query, &w.Nodes, &w.Ranked)
	})
	if postgres.Classify(err) == postgres.Permanent {
		err = fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return w, err
}

// Filter narrows a search. The zero value of each field but Namespace narrows nothing.
type Filter struct {
	Namespace string
	Workflows []string
	States    []wigglev1.InstanceState
	// Lexemes must all be there; see package document.
	Lexemes []string
	// CreatedFrom <= created < CreatedBefore, and the same of the end, which leaves out what runs.
	CreatedFrom, CreatedBefore time.Time
	EndedFrom, EndedBefore     time.Time
	Ranges                     []Range
	// Only are the workflows that whoever searches may see; nil for all (SRC-6).
	Only *permission.Names
}

// Range is a range of a number of the context; an end that is nil is open.
type Range struct {
	Path            string
	AtLeast, AtMost *float64
}

// Query is what is searched for.
type Query struct {
	Words Words
	Filter
}

// where is a search as conditions on documents d.
type where struct {
	sql  strings.Builder
	args []any
}

// arg adds an argument and gives its placeholder.
func (w *where) arg(v any) string {
	w.args = append(w.args, v)
	return fmt.Sprintf("$%d", len(w.args))
}

func (w *where) and(format string, args ...any) {
	w.sql.WriteString(" and ")
	fmt.Fprintf(&w.sql, format, args...)
}

// conditions are those of a search. With columns workflows and states are compared as columns, else they are lexemes, so
// that an index brings them together with the words.
func (q *Query) conditions(columns bool) *where {
	w := &where{}
	w.sql.WriteString("d.namespace = " + w.arg(q.Namespace))
	if columns {
		if len(q.Workflows) > 0 {
			w.and("d.workflow = any (%s::text[])", w.arg(q.Workflows))
		}
		if len(q.States) > 0 {
			states := make([]int16, len(q.States))
			for i, s := range q.States {
				states[i] = int16(s) //nolint:gosec // an enum
			}
			w.and("d.state = any (%s::smallint[])", w.arg(states))
		}
	}
	if !columns && !q.Only.All() {
		// The lexemes find them; but lexemes are hashes, and rights are not a matter of luck. PostgreSQL takes a case for one row
		// in two, so it does not count twice how rare the workflows are.
		w.and("case when d.workflow = any (%s::text[]) then true else false end", w.arg(q.Workflows))
	}
	if words := q.tsquery(!columns); words != "" {
		w.and("d.words @@ %s::tsquery", w.arg(words))
	}
	for _, bound := range []struct {
		column, op string
		at         time.Time
	}{
		{"created_at", ">=", q.CreatedFrom},
		{"created_at", "<", q.CreatedBefore},
		{"ended_at", ">=", q.EndedFrom},
		{"ended_at", "<", q.EndedBefore},
	} {
		if !bound.at.IsZero() {
			w.and("d.%s %s %s", bound.column, bound.op, w.arg(timestamp(bound.at)))
		}
	}
	for _, r := range q.Ranges {
		number := fmt.Sprintf("(d.numbers ->> %s::text)::float8", w.arg(r.Path))
		if r.AtLeast != nil {
			w.and("%s >= %s", number, w.arg(*r.AtLeast))
		}
		if r.AtMost != nil {
			w.and("%s <= %s", number, w.arg(*r.AtMost))
		}
		if r.AtLeast == nil && r.AtMost == nil {
			w.and("%s is not null", number)
		}
	}
	return w
}

// tsquery is everything that is asked of words. Lexemes need no quoting but for their '='.
func (q *Query) tsquery(all bool) string {
	var parts []string
	if q.Words.Query != "" {
		parts = append(parts, "("+q.Words.Query+")")
	}
	for _, l := range q.Lexemes {
		parts = append(parts, "'"+l+"'")
	}
	if all {
		var workflows, states []string
		for _, name := range q.Workflows[:q.named()] {
			workflows = append(workflows, "'"+document.WorkflowLexeme(name)+"'")
		}
		for _, state := range q.States {
			states = append(states, "'"+document.StateLexeme(state)+"'")
		}
		for _, some := range [][]string{workflows, states} {
			if len(some) > 0 {
				parts = append(parts, "("+strings.Join(some, "|")+")")
			}
		}
	}
	return strings.Join(parts, "&")
}

// Texts is what a page shows of a document's texts.
type Texts struct {
	Failure  string
	Snippets []string
}

const (
	// headlineCharacters is how much of a text is looked through for snippets.
	headlineCharacters = 16 << 10
	headlineOptions    = `StartSel="` + string(document.MarkStart) + `",StopSel="` + string(document.MarkStop) +
		`",FragmentDelimiter="` + string(document.MarkNext) + `",MaxFragments=3,MaxWords=14,MinWords=4`
	// failureCharacters is how much of a failure's text a hit shows.
	failureCharacters = 2048
)

// texts goes by the primary key. The headline is made of what the words are searched in.
const texts = `select t.shard, t.id, left(t.failure, $5), case when $3::text <> '' then
	ts_headline($4::text::regconfig, left(t.text || E'\n' || t.failure, $6), $3::text::tsquery, $7) else '' end
from unnest($1::integer[], $2::uuid[]) u(shard, id) join document_texts t on t.shard = u.shard and t.id = u.id`

// Texts reads what is shown of the hits of a page, with the words marked where there are some.
func (s *Store) Texts(ctx context.Context, words Words, keys []document.Key) (map[document.Key]Texts, error) {
	shards, ids := keyArrays(keys)
	marked := words.Query
	if !words.Ranked {
		marked = ""
	}
	found := make(map[document.Key]Texts, len(keys))
	err := s.read(ctx, "read texts", func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, texts, shards, ids, marked, s.language, failureCharacters, headlineCharacters, headlineOptions)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var key document.Key
			var failure, headline string
			if err := rows.Scan(&key.Shard, &key.ULID, &failure, &headline); err != nil {
				return err
			}
			found[key] = Texts{Failure: failure, Snippets: snippets(headline)}
		}
		return rows.Err()
	})
	return found, err
}

// snippets parts a headline. A part without a found word is the beginning of a text in which, as far as it was looked
// through, there is none.
func snippets(headline string) []string {
	var list []string
	for part := range strings.SplitSeq(headline, string(document.MarkNext)) {
		if strings.ContainsRune(part, document.MarkStart) {
			list = append(list, strings.Join(strings.Fields(part), " "))
		}
	}
	return list
}

// infinite is a time before or after all.
func infinite(m pgtype.InfinityModifier) pgtype.Timestamptz {
	return pgtype.Timestamptz{InfinityModifier: m, Valid: true}
}
