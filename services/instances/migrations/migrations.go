// Package migrations holds the schema of the instances service: the tables that
// every shard has, and those that only the home shard has. Each file says why it is
// there, which locks it takes and for how long.
package migrations

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

//go:embed *.sql
var files embed.FS

// Set is the schema for [postgres.Migrate].
func Set() postgres.MigrationSet { return postgres.MigrationSet{Role: "instances", FS: files} }

// Checksum tells two versions of the schema apart, for tests that keep a migrated
// database to copy.
func Checksum() string {
	sum := sha256.New()
	names, _ := fs.Glob(files, "*.sql") // of an embedded directory, under a pattern that is right
	for _, name := range names {
		content, _ := fs.ReadFile(files, name)
		_, _ = sum.Write(append([]byte(name+"\x00"), content...))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

//go:embed home/*.sql
var homeFiles embed.FS

// Home is the schema of the home shard's own tables for [postgres.Migrate].
func Home() postgres.MigrationSet {
	sub, err := fs.Sub(homeFiles, "home")
	if err != nil {
		panic(err) // the path is a constant
	}
	return postgres.MigrationSet{Role: "home", FS: sub}
}
