// Package migrations holds the schema of the auth service: accounts, roles, sessions, keys and the audit log. Each file says why it is
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
func Set() postgres.MigrationSet { return postgres.MigrationSet{Role: "auth", FS: files} }

// Checksum tells two versions of the schema apart, for tests that keep a migrated database to copy.
func Checksum() string {
	sum := sha256.New()
	names, _ := fs.Glob(files, "*.sql") // of an embedded directory, under a pattern that is right
	for _, name := range names {
		content, _ := fs.ReadFile(files, name)
		_, _ = sum.Write(append([]byte(name+"\x00"), content...))
	}
	return hex.EncodeToString(sum.Sum(nil))
}
