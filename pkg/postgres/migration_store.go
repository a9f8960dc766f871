package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3/database"
)

// versionStore is goose's table of versions with, for each file, what drift is recognised by. The row is written in the
// transaction of the migration.
type versionStore struct {
	table string
	files []migration
}

var _ database.StoreExtender = (*versionStore)(nil)

// applied is one row of the table.
type applied struct {
	version, requires int64
	name, checksum    string
}

// readApplied returns what was applied, oldest first; nothing if the table does not exist.
func readApplied(ctx context.Context, db *sql.DB, table string) ([]applied, error) {
	var exists bool
	if err := db.QueryRowContext(ctx, "select to_regclass($1::text) is not null", table).Scan(&exists); err != nil || !exists {
		return nil, err
	}
	query := "select version, requires, name, checksum from " + table + " where version > 0 order by version" //nolint:gosec // a role's
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []applied
	for rows.Next() {
		var a applied
		if err := rows.Scan(&a.version, &a.requires, &a.name, &a.checksum); err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, rows.Err()
}

func (s *versionStore) Tablename() string { return s.table }

func (s *versionStore) TableExists(ctx context.Context, db database.DBTxConn) (bool, error) {
	var exists bool
	err := db.QueryRowContext(ctx, "select to_regclass($1::text) is not null", s.table).Scan(&exists)
	return exists, err
}

func (s *versionStore) CreateVersionTable(ctx context.Context, db database.DBTxConn) error {
	_, err := db.ExecContext(ctx, "create table "+s.table+` (
		version    bigint      primary key,
		name       text        not null,
		checksum   text        not null,
		requires   bigint      not null,
		applied_at timestamptz not null default now()
	)`)
	return err
}

func (s *versionStore) Insert(ctx context.Context, db database.DBTxConn, req database.InsertRequest) error {
	var file migration // version 0, which goose inserts first, has none
	for _, f := range s.files {
		if f.version == req.Version {
			file = f
		}
	}
	_, err := db.ExecContext(ctx, "insert into "+s.table+" (version, name, checksum, requires) values ($1, $2, $3, $4)",
		req.Version, file.name, file.checksum, file.requires)
	return err
}

func (s *versionStore) Delete(context.Context, database.DBTxConn, int64) error {
	return errors.New("schemas only go forward")
}

func (s *versionStore) GetMigration(ctx context.Context, db database.DBTxConn, version int64) (*database.GetMigrationResult, error) {
	out := &database.GetMigrationResult{IsApplied: true}
	err := db.QueryRowContext(ctx, "select applied_at from "+s.table+" where version = $1", version).Scan(&out.Timestamp)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: %d", database.ErrVersionNotFound, version)
	}
	return out, err
}

func (s *versionStore) GetLatestVersion(ctx context.Context, db database.DBTxConn) (int64, error) {
	var version sql.NullInt64
	if err := db.QueryRowContext(ctx, "select max(version) from "+s.table).Scan(&version); err != nil {
		return -1, err
	}
	if !version.Valid {
		return -1, database.ErrVersionNotFound
	}
	return version.Int64, nil
}

func (s *versionStore) ListMigrations(ctx context.Context, db database.DBTxConn) ([]*database.ListMigrationsResult, error) {
	rows, err := db.QueryContext(ctx, "select version from "+s.table+" order by version desc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []*database.ListMigrationsResult
	for rows.Next() {
		r := &database.ListMigrationsResult{IsApplied: true}
		if err := rows.Scan(&r.Version); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}
