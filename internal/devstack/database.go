package devstack

import (
	"context"
	"fmt"
	"strings"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

// CreateDatabase creates a database unless it exists.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "devstack", URL: s.URL("postgres"), MaxConns: 1})
	if err != nil {
		return err
	}
	defer pool.Close()
	var exists bool
	if err := pool.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&exists); err != nil {
		return fmt.Errorf("look for database %s: %w", name, err)
	}
	if exists {
		return nil
	}
	if _, err := pool.Exec(ctx, "create database "+quoteIdentifier(name)); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

func quoteIdentifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
