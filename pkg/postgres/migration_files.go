package postgres

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
)

// migration is one file of a set.
type migration struct {
	version  int64
	name     string
	content  []byte
	checksum string // SHA-256 of the file as it is in the set, in hex
	requires int64  // 0: any binary can work with it
}

var (
	fileName     = regexp.MustCompile(`^(\d{4,})_[a-z0-9_]+\.sql$`)
	requiresLine = regexp.MustCompile(`(?m)^-- wiggle: requires (\d+)\s*$`)
	downSection  = regexp.MustCompile(`(?mi)^--\s*\+goose\s+down`)
	upSection    = regexp.MustCompile(`(?mi)^--\s*\+goose\s+up`)
)

// loadMigrations reads and checks the files of a set, sorted by version.
func loadMigrations(set MigrationSet) ([]migration, error) {
	if !roleName.MatchString(set.Role) {
		return nil, fmt.Errorf("schema role %q: want lower-case letters and underscores", set.Role)
	}
	names, err := fs.Glob(set.FS, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", set.Role, err)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("schema %s has no migrations", set.Role)
	}
	var files []migration
	for _, name := range names {
		f, err := loadMigration(set.FS, name)
		if err != nil {
			return nil, fmt.Errorf("schema %s: migration %s: %w", set.Role, name, err)
		}
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b migration) int { return int(a.version - b.version) })
	for i := range files[1:] {
		if files[i].version == files[i+1].version {
			return nil, fmt.Errorf("schema %s: %s and %s have the same number", set.Role, files[i].name, files[i+1].name)
		}
	}
	return files, nil
}

func loadMigration(fsys fs.FS, name string) (migration, error) {
	m := fileName.FindStringSubmatch(name)
	if m == nil {
		return migration{}, errors.New("want a name like 0001_words.sql")
	}
	version, err := strconv.ParseInt(m[1], 10, 32)
	if err != nil || version == 0 {
		return migration{}, errors.New("bad number")
	}
	content, err := fs.ReadFile(fsys, name)
	if err != nil {
		return migration{}, err
	}
	if downSection.Match(content) {
		return migration{}, errors.New("has a Down section; schemas only go forward")
	}
	sum := sha256.Sum256(content)
	f := migration{version: version, name: name, content: content, checksum: hex.EncodeToString(sum[:])}
	if m := requiresLine.FindSubmatch(content); m != nil {
		if f.requires, err = strconv.ParseInt(string(m[1]), 10, 32); err != nil || f.requires > version {
			return migration{}, errors.New("requires a migration that comes later")
		}
	}
	return f, nil
}

// gooseFS is a set as goose is to read it. A plain file is declared to be one statement: goose would otherwise split it
// at each semicolon, function bodies included, while PostgreSQL takes several statements at once.
type gooseFS struct {
	fs.FS
	files []migration
}

// Open serves the files of the set and leaves the rest, the listing of the directory, to the file system below.
func (g gooseFS) Open(name string) (fs.File, error) {
	for _, f := range g.files {
		if f.name != name {
			continue
		}
		content := f.content
		if !upSection.Match(content) {
			content = slices.Concat([]byte("-- +goose Up\n-- +goose StatementBegin\n"), content, []byte("\n-- +goose StatementEnd\n"))
		}
		below, err := g.FS.Open(name)
		if err != nil {
			return nil, err
		}
		return gooseFile{File: below, text: bytes.NewReader(content)}, nil
	}
	return g.FS.Open(name)
}

// gooseFile is a file with another content.
type gooseFile struct {
	fs.File
	text *bytes.Reader
}

func (f gooseFile) Read(p []byte) (int, error) { return f.text.Read(p) }
