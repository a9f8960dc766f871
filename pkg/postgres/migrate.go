package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

const (
	// migrateLockTimeout bounds how long a migration waits for a table that is in use: while it waits, everyone else
	// queues behind it. It is then tried again.
	migrateLockTimeout = 5 * time.Second
	migrateAttempts    = 10
	// migrateTurnPause is the pause between two looks at whether another process has finished migrating.
	migrateTurnPause = 100 * time.Millisecond
)

// MigrateMode says what [Migrate] may do.
type MigrateMode int

const (
	// Apply brings the schema up to date.
	Apply MigrateMode = iota
	// Verify changes nothing and fails if something is pending (WIGGLE_SCHEMA_MODE=verify).
	Verify
)

// MigrationSet is the schema of one role: every file *.sql at the root of FS, named NNNN_words.sql and applied in order of
// the number, each in a transaction of its own.
//
// A file is plain SQL. It may instead carry goose's annotations, which is how a file that cannot run in a transaction says
// so ("-- +goose NO TRANSACTION", then "-- +goose Up"); a Down section is refused, because schemas only go forward. A file
// is never edited once it is released: its checksum is kept, and an edit is refused as drift.
//
// Old and new binaries work on one database during a rolling upgrade, so a database that is newer than the binary is
// accepted. A migration that older binaries cannot live with says from which migration on a binary must know the
// schema, in a line of its own:
//
//	-- wiggle: requires 0007
//
// Binaries whose newest migration is older than that are then refused with [SchemaTooNewError].
type MigrationSet struct {
	// Role names the set: lower-case letters and underscores. Its table is wiggle_migrations_<role>.
	Role string
	FS   fs.FS
}

// Report tells what [Migrate] found and did.
type Report struct {
	Role string
	// Version is the newest migration in the database now, 0 for none; Target the newest of the set.
	Version, Target int64
	// Applied and Pending name files, in order. Pending is empty after Apply.
	Applied, Pending []string
}

// Newer tells whether the database has migrations that the binary does not know, as in the middle of a rolling upgrade, or after a
// binary was replaced by the one of the release before.
func (r Report) Newer() bool { return r.Version > r.Target }

// DriftError says that a migration which was applied is not the one in the binary.
type DriftError struct {
	Role, File string
	// Missing means that the binary lacks the file although it knows newer ones.
	Missing bool
}

// Error names the file.
func (e *DriftError) Error() string {
	if e.Missing {
		return fmt.Sprintf("schema %s has drifted: migration %s was applied but is not in this binary", e.Role, e.File)
	}
	return fmt.Sprintf("schema %s has drifted: migration %s was edited after it had been applied", e.Role, e.File)
}

// PendingError says that [Verify] found migrations that were not applied.
type PendingError struct {
	Role  string
	Files []string
}

// Error names the files.
func (e *PendingError) Error() string {
	return fmt.Sprintf("schema %s is not up to date, pending: %s (run wiggle migrate)", e.Role, strings.Join(e.Files, ", "))
}

// SchemaTooNewError says that the database has a migration with which this binary cannot work.
type SchemaTooNewError struct {
	Role, File string
	// Requires is the migration a binary must know at least, Known the newest that this one knows.
	Requires, Known int64
}

// Error names the migration and both versions, and says what to do.
func (e *SchemaTooNewError) Error() string {
	return fmt.Sprintf("schema %s is too new: migration %s needs a binary that knows migration %04d, this one ends at %04d: "+
		"run a newer release of Wiggle here; schemas do not go back", e.Role, e.File, e.Requires, e.Known)
}

var roleName = regexp.MustCompile(`^[a-z][a-z_]{0,30}$`)

// Migrate brings the schema of a role up to date, or with [Verify] checks that it is. It does not use the pool's
// connections, whose time limits are too short for it, but connects like it. Any number of processes may call it at once:
// one applies, the others wait and find nothing left to do. Errors: [DriftError], [PendingError], [SchemaTooNewError], or
// that of a migration, naming its file; those before it stay applied.
func Migrate(ctx context.Context, pool *Pool, set MigrationSet, mode MigrateMode) (Report, error) {
	files, err := loadMigrations(set)
	if err != nil {
		return Report{Role: set.Role}, err
	}
	m := &migrator{pool: pool, set: set, files: files, db: stdlib.OpenDB(*pool.migrationConfig())}
	defer func() { _ = m.db.Close() }()
	report, err := m.inspect(ctx)
	if err == nil && report.Newer() {
		pool.cfg.Logger.Info("the schema is newer than this binary, which can work with it", slog.String("member", pool.cfg.Name),
			slog.String("role", set.Role), slog.Int64("version", report.Version), slog.Int64("known", report.Target))
	}
	if err != nil || len(report.Pending) == 0 {
		return report, err
	}
	if mode == Verify {
		return report, &PendingError{Role: set.Role, Files: report.Pending}
	}
	for attempt := 1; ; attempt++ {
		report, err = m.apply(ctx)
		if err == nil || attempt >= migrateAttempts || Classify(err) != NotApplied {
			return report, err
		}
		if !pause(ctx, rand.N(time.Second)) { //nolint:gosec // jitter
			return report, err
		}
	}
}

// migrationConfig connects like the pool, without limits on the time of statements.
func (p *Pool) migrationConfig() *pgx.ConnConfig {
	cc := p.probe.Copy()
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	if !p.cfg.TransactionPooler {
		cc.RuntimeParams["statement_timeout"] = "0"
		cc.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
		cc.RuntimeParams["lock_timeout"] = fmt.Sprint(migrateLockTimeout.Milliseconds())
	}
	return cc
}

type migrator struct {
	pool  *Pool
	set   MigrationSet
	files []migration
	db    *sql.DB
}

// inspect compares the database with the set and changes nothing.
func (m *migrator) inspect(ctx context.Context) (Report, error) {
	report := Report{Role: m.set.Role, Target: m.files[len(m.files)-1].version}
	applied, err := readApplied(ctx, m.db, tableName(m.set.Role))
	if err != nil {
		return report, m.pool.wrap("read schema version", err, phaseConnect)
	}
	known := map[int64]migration{}
	for _, f := range m.files {
		known[f.version] = f
	}
	done := map[int64]bool{}
	for _, a := range applied {
		done[a.version] = true
		report.Version = max(report.Version, a.version)
		f, ok := known[a.version]
		switch {
		case ok && f.checksum != a.checksum:
			return report, &DriftError{Role: m.set.Role, File: f.name}
		case !ok && a.version < report.Target:
			return report, &DriftError{Role: m.set.Role, File: a.name, Missing: true}
		case !ok && a.requires > report.Target:
			return report, &SchemaTooNewError{Role: m.set.Role, File: a.name, Requires: a.requires, Known: report.Target}
		}
	}
	for _, f := range m.files {
		if !done[f.version] {
			report.Pending = append(report.Pending, f.name)
		}
	}
	return report, nil
}

// apply takes the lock, looks again, and runs what is pending.
func (m *migrator) apply(ctx context.Context) (Report, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return Report{Role: m.set.Role}, m.pool.wrap("lock schema", err, phaseTx)
	}
	defer unlock()
	report, err := m.inspect(ctx)
	if err != nil || len(report.Pending) == 0 {
		return report, err
	}
	provider, err := goose.NewProvider(goose.DialectCustom, m.db, gooseFS{FS: m.set.FS, files: m.files},
		goose.WithStore(&versionStore{table: tableName(m.set.Role), files: m.files}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return report, fmt.Errorf("schema %s: %w", m.set.Role, err)
	}
	results, err := provider.Up(ctx)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = partial.Applied
		err = fmt.Errorf("schema %s: migration %s: %w", m.set.Role, partial.Failed.Source.Path, partial.Err)
	}
	for _, r := range results {
		report.Applied = append(report.Applied, r.Source.Path)
		report.Version = max(report.Version, r.Source.Version)
		m.pool.cfg.Logger.Info("migration applied", slog.String("member", m.pool.cfg.Name), slog.String("role", m.set.Role),
			slog.String("file", r.Source.Path), slog.Duration("took", r.Duration))
	}
	report.Pending = report.Pending[len(results):]
	return report, err
}

// lock keeps other processes from migrating the same role in this database. It is held by a transaction, so that it works
// through a transaction-mode pooler and ends with the connection in any case. It is polled for: a process that waited
// inside the lock function would hold a snapshot, which CREATE INDEX CONCURRENTLY in a migration waits for.
func (m *migrator) lock(ctx context.Context) (unlock func(), err error) {
	for {
		tx, err := m.db.BeginTx(ctx, nil)
		if err != nil {
			return nil, err
		}
		var got bool
		if err = tx.QueryRowContext(ctx, "select pg_try_advisory_xact_lock($1)", lockKey(m.set.Role)).Scan(&got); err == nil && got {
			_, err = tx.ExecContext(ctx, "set local idle_in_transaction_session_timeout = 0")
		}
		if err == nil && got {
			return func() { _ = tx.Rollback() }, nil
		}
		_ = tx.Rollback()
		if err != nil {
			return nil, err
		}
		if !pause(ctx, migrateTurnPause/2+rand.N(migrateTurnPause)) { //nolint:gosec // jitter
			return nil, ctx.Err()
		}
	}
}

// lockKey is the advisory lock of a role: the upper half says "Wiggle schema".
func lockKey(role string) int64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(role))
	return 0x7767_7363<<32 | int64(h.Sum32())
}

func tableName(role string) string { return "wiggle_migrations_" + role }
