// Package migrations holds the schema of the leader service: what it keeps on the home shard. Each file says why it is
// there, which locks it takes and for how long.
package migrations

import (
	"embed"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

//go:embed *.sql
var files embed.FS

// Set is the schema for [postgres.Migrate]. It goes to the home shard alone.
func Set() postgres.MigrationSet { return postgres.MigrationSet{Role: "leader", FS: files} }
