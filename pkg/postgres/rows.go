package postgres

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rows gives its connection back when it is closed, read to the end or fails, and classifies errors.
type rows struct {
	pgx.Rows
	pool *Pool
	conn *pgxpool.Conn
}

func (r *rows) Close() {
	r.Rows.Close()
	if r.conn != nil {
		r.conn.Release()
		r.conn = nil
	}
}

func (r *rows) Err() error { return r.pool.wrap("query", r.Rows.Err(), phaseStatement) }

func (r *rows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *rows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err // of conversion, not of storage
}

func (r *rows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil {
		r.Close()
	}
	return values, err
}

// row is one row of QueryRow; its connection goes back when it is scanned.
type row struct {
	row  pgx.Row
	pool *Pool
	conn *pgxpool.Conn
}

func (r *row) Scan(dest ...any) error {
	defer r.conn.Release()
	err := r.row.Scan(dest...)
	if err != nil && isStorage(err) {
		return r.pool.wrap("query", err, phaseStatement)
	}
	return err
}

// batchResults gives its connection back when it is closed and classifies errors. A transaction that the batch began
// (pgx.Batch.BeginTx) would outlive it; [Pool.InTx] is the way to do that.
type batchResults struct {
	pgx.BatchResults
	pool *Pool
	conn *pgxpool.Conn
}

func (b *batchResults) Exec() (pgconn.CommandTag, error) {
	tag, err := b.BatchResults.Exec()
	return tag, b.pool.wrap("batch", err, phaseStatement)
}

func (b *batchResults) Query() (pgx.Rows, error) {
	r, err := b.BatchResults.Query()
	if err != nil {
		err = b.pool.wrap("batch", err, phaseStatement)
		return failedRows{err: err}, err
	}
	return &rows{Rows: r, pool: b.pool}, nil
}

func (b *batchResults) QueryRow() pgx.Row {
	return batchRow{row: b.BatchResults.QueryRow(), pool: b.pool}
}

func (b *batchResults) Tx() pgx.Tx { return nil }

func (b *batchResults) Close() error {
	err := b.BatchResults.Close()
	if b.conn != nil {
		b.conn.Release()
		b.conn = nil
	}
	return b.pool.wrap("batch", err, phaseStatement)
}

type batchRow struct {
	row  pgx.Row
	pool *Pool
}

func (r batchRow) Scan(dest ...any) error {
	err := r.row.Scan(dest...)
	if err != nil && isStorage(err) {
		return r.pool.wrap("batch", err, phaseStatement)
	}
	return err
}

// failedRows is the result of a query that did not start, as pgx's own pool returns it.
type failedRows struct{ err error }

func (failedRows) Close()                                       {}
func (f failedRows) Err() error                                 { return f.err }
func (failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (failedRows) Next() bool                                   { return false }
func (f failedRows) Scan(...any) error                          { return f.err }
func (f failedRows) Values() ([]any, error)                     { return nil, f.err }
func (failedRows) RawValues() [][]byte                          { return nil }
func (failedRows) Conn() *pgx.Conn                              { return nil }
func (failedRows) TypeMap() *pgtype.Map                         { return nil }
