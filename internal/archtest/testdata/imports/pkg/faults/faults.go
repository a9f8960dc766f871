// Package faults is shared.
package faults

import (
	_ "github.com/fergusstrange/embedded-postgres"
	_ "github.com/jackc/pgx/v5/pgconn"
	_ "testing"
)
