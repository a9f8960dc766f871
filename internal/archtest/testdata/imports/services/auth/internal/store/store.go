// Package store may use pgx.
package store

import (
	_ "github.com/jackc/pgx/v5/pgxpool"
)
