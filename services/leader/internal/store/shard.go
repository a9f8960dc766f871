package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
)

// Shard is what the leader writes on one shard.
type Shard struct {
	pool *postgres.Pool
	log  bool // it has an event log
}

// NewShard makes a shard. Whether it has an event log follows from its roles.
func NewShard(pool *postgres.Pool, eventLog bool) *Shard { return &Shard{pool: pool, log: eventLog} }

// The heartbeat; on a shard with an event log it brings the last number of the log along, so that an idle shard sees one
// statement a second and no other. Numbers are taken before what they number is committed: the number is a hint.
const (
	beat = `update wiggle_heartbeat set beat = beat + 1, beaten_at = clock_timestamp(), term = $1
where only_row and term <= $1 returning `
	beatWithLog    = beat + `(select case when is_called then last_value else 0 end from events_seq)`
	beatWithoutLog = beat + `0::bigint`
	beatTerm       = `select term from wiggle_heartbeat`
)

// Beat writes the heartbeat (REP-1) and tells the last number of the event log, 0 where there is none.
func (s *Shard) Beat(ctx context.Context, term int64) (last int64, err error) {
	statement := beatWithoutLog
	if s.log {
		statement = beatWithLog
	}
	err = s.pool.QueryRow(ctx, statement, term).Scan(&last)
	if err != nil {
		return 0, s.failed(ctx, "beat", err, beatTerm, term)
	}
	return last, nil
}

// Cursor is how far NATS has the event log of a shard.
type Cursor struct {
	// Seq is the number up to which it has everything.
	Seq int64
	// Stream is the making of the stream that this is about; empty if nothing was ever relayed.
	Stream string
}

const (
	takeCursor  = `update event_relay set term = $1 where only_row and term <= $1 returning seq, stream`
	writeCursor = `update event_relay set term = $1, seq = $2, stream = $3, relayed_at = clock_timestamp()
where only_row and term <= $1 returning seq`
	cursorTerm = `select term from event_relay`
)

// TakeCursor reads the cursor and keeps earlier leaders from writing it.
func (s *Shard) TakeCursor(ctx context.Context, term int64) (Cursor, error) {
	var c Cursor
	if err := s.pool.QueryRow(ctx, takeCursor, term).Scan(&c.Seq, &c.Stream); err != nil {
		return Cursor{}, s.failed(ctx, "take the relay's cursor", err, cursorTerm, term)
	}
	return c, nil
}

// WriteCursor writes the cursor.
func (s *Shard) WriteCursor(ctx context.Context, term int64, c Cursor) error {
	var seq int64
	if err := s.pool.QueryRow(ctx, writeCursor, term, c.Seq, c.Stream).Scan(&seq); err != nil {
		return s.failed(ctx, "write the relay's cursor", err, cursorTerm, term)
	}
	return nil
}

// failed is why a fenced write did not come about. If it changed no row the row was written under a later term: it is
// asked for that, so that a row which is missing, as nobody but a person can have removed it, is not taken for one.
func (s *Shard) failed(ctx context.Context, doing string, err error, readTerm string, term int64) error {
	if !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	var later int64
	if err := s.pool.QueryRow(ctx, readTerm).Scan(&later); err != nil {
		return fmt.Errorf("%s: read the term: %w", doing, err)
	}
	if later <= term {
		return fmt.Errorf("%s: no row was written although its term %d is no later", doing, later)
	}
	return fmt.Errorf("%s: %w", doing, &election.FencedError{Term: later})
}
