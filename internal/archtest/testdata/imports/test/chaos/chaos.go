// Package chaos crosses processes.
package chaos

import (
	_ "github.com/jackc/pgx/v5"
	_ "github.com/wiggle-run/wiggle/internal/app"
	_ "testing"
)
