package app

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/topology"
)

var (
	sqlComment = regexp.MustCompile(`(?m)--.*$`)
	// takesAway is what a process of the release before may not survive.
	takesAway = regexp.MustCompile(`(?is)\b(drop\s+(table|column|sequence|function|view|type|trigger|schema)|rename\s+(to|column)|` +
		`alter\s+(column\s+)?\w+\s+(set\s+data\s+)?type\b|set\s+not\s+null|add\s+constraint)`)
	// newColumn is one that the release before does not fill in: it must be able to be empty, or have a default.
	newColumn = regexp.MustCompile(`(?i)\badd\s+(column\s+)?\w+\s+[^,;]*`)
	notNull   = regexp.MustCompile(`(?i)\bnot\s+null\b`)
	byDefault = regexp.MustCompile(`(?i)\b(default|generated)\b`)
	requires  = regexp.MustCompile(`(?m)^-- wiggle: requires \d+\s*$`)
)

// taken is the first of a migration that the release before may not survive; empty for none.
func taken(text string) string {
	text = sqlComment.ReplaceAllString(text, "")
	found := takesAway.FindString(text)
	for _, column := range newColumn.FindAllString(text, -1) {
		if found == "" && notNull.MatchString(column) && !byDefault.MatchString(column) {
			found = column
		}
	}
	return strings.Join(strings.Fields(found), " ")
}

// TestMigrationsOnlyAdd: the release before works on with the schema of this one, or the migration says from which on a binary can
// (SHD-15, OPS-4). Its processes run on during a rolling upgrade, and perhaps again after it.
func TestMigrationsOnlyAdd(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, set := range schemaSets(topology.Roles{topology.RoleInstances, topology.RoleHome, topology.RoleAuth, topology.RoleSearch}) {
		names, err := fs.Glob(set.FS, "*.sql")
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(names)
		for _, name := range names[1:] {
			text, err := fs.ReadFile(set.FS, name)
			if err != nil {
				t.Fatal(err)
			}
			seen++
			if found := taken(string(text)); found != "" && !requires.Match(text) {
				t.Errorf("schema %s, %s: %q takes away what the release before may use: do it a release later, with the line "+
					"\"-- wiggle: requires NNNN\"", set.Role, name, found)
			}
		}
	}
	if seen == 0 {
		t.Error("no migration was looked at")
	}
}

func TestTaken(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"alter table events add column trace text;":                      false,
		"create table a (id bigint not null);":                           false,
		"create index documents_of_workflow on documents (workflow);":    false,
		"alter table t add column n bigint not null default 0":           false,
		"alter table t add n bigint not null":                            true,
		"-- drop table t":                                                false,
		"alter table t drop column n":                                    true,
		"DROP TABLE t":                                                   true,
		"alter table t rename column a to b":                             true,
		"alter table t rename to u":                                      true,
		"alter table t alter column a type bigint":                       true,
		"alter table t alter column a set not null":                      true,
		"alter table t add constraint c check (a > 0)":                   true,
		"alter table t alter column a set default 1, alter b type text;": true,
	} {
		if (taken(sql) != "") != want {
			t.Errorf("%q: %t", sql, !want)
		}
	}
}
