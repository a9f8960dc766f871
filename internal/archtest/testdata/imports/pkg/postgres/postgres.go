// Package postgres may use pgx.
package postgres

import (
	_ "github.com/jackc/pgx/v5"
)
