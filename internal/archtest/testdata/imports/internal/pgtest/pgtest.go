// Package pgtest helps tests.
package pgtest

import (
	_ "github.com/jackc/pgx/v5"
	_ "sync/atomic"
	_ "testing"
)
