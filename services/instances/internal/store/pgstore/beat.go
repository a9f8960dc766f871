package pgstore

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// extendLeases finds each token by the primary key and means what [machine.Beat]
// does. It changes nothing that is indexed. It waits for no lock while it holds
// others: it skips what is locked, or, with one token alone, waits for it.
//
// Parameters: $1 tokens, $2 fences, $3 extensions, $4 progress, $5 its content types.
func extendLeases(wait string) string {
	return `with
held as materialized (
	select t.id, b.extend_us, b.progress, b.progress_type
	from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bytea[], $5::text[]) b(id, fence, extend_us, progress, progress_type)
	cross join lateral (
		select t.id from tokens t where t.id = b.id and t.fence = b.fence and t.state = 2 limit 1 for update of t ` + wait + `
	) t
),
clock as materialized (select clock_timestamp() as at, count(*) from held)
update tokens t
set lease_until = least(c.at + h.extend_us * interval '1 microsecond', t.deadline),
	progress = coalesce(h.progress, t.progress),
	progress_type = case when h.progress is null then t.progress_type else h.progress_type end
from clock c cross join held h
where t.id = any (array[h.id])
returning t.id, t.fence, t.lease_until`
}

// stillHeld tells which leases are held at all. A lease that was lost never comes back.
const stillHeld = `select b.id, b.fence from unnest($1::uuid[], $2::bigint[]) b(id, fence)
cross join lateral (select t.id from tokens t where t.id = b.id and t.fence = b.fence and t.state = 2 limit 1) t`

// Beat implements [store.Store].
func (s *Store) Beat(ctx context.Context, beats []store.Beat) ([]store.BeatResult, error) {
	// A token is extended once in a statement: the last beat of a lease counts.
	last := make(map[lease]store.Beat, len(beats))
	for _, b := range beats {
		last[lease{b.Token, b.Fence}] = b
	}
	until, err := s.extend(ctx, last, "skip locked")
	if err != nil {
		return nil, fmt.Errorf("extend leases: %w", err)
	}
	if len(until) < len(last) {
		if err := s.extendBusy(ctx, last, until); err != nil {
			return nil, fmt.Errorf("extend leases: %w", err)
		}
	}
	results := make([]store.BeatResult, len(beats))
	for i, b := range beats {
		results[i].LeaseUntil = until[lease{b.Token, b.Fence}]
	}
	return results, nil
}

// lease is what a beat is for.
type lease struct {
	token machine.ID
	fence int64
}

// extend extends leases and tells until when.
func (s *Store) extend(ctx context.Context, beats map[lease]store.Beat, wait string) (map[lease]time.Time, error) {
	until := make(map[lease]time.Time, len(beats))
	if len(beats) == 0 {
		return until, ctx.Err()
	}
	var tokens []pgtype.UUID
	var fences, extensions []int64
	var progress [][]byte
	var types []string
	for l, b := range beats {
		tokens, fences, extensions = append(tokens, uuid(l.token)), append(fences, l.fence), append(extensions, b.Extend.Microseconds())
		progress, types = append(progress, b.Progress.Data), append(types, b.Progress.ContentType)
	}
	rows, err := s.pool.Query(ctx, extendLeases(wait), tokens, fences, extensions, progress, types)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var l lease
		var at pgtype.Timestamptz
		if err := rows.Scan((*[16]byte)(&l.token), &l.fence, &at); err != nil {
			return nil, err
		}
		until[l] = when(at)
	}
	return until, rows.Err()
}

// extendBusy adds to until the leases of tokens that another transaction had
// locked. It waits for them one at a time: who waits while it holds nothing cannot
// be part of a deadlock.
func (s *Store) extendBusy(ctx context.Context, beats map[lease]store.Beat, until map[lease]time.Time) error {
	var tokens []pgtype.UUID
	var fences []int64
	for l := range beats {
		if until[l].IsZero() {
			tokens, fences = append(tokens, uuid(l.token)), append(fences, l.fence)
		}
	}
	rows, err := s.pool.Query(ctx, stillHeld, tokens, fences)
	busy, err := collect(rows, err, func(rows pgx.Rows) (l lease, err error) {
		return l, rows.Scan((*[16]byte)(&l.token), &l.fence)
	})
	if err != nil {
		return err
	}
	for _, l := range busy {
		one, err := s.extend(ctx, map[lease]store.Beat{l: beats[l]}, "")
		if err != nil {
			return err
		}
		maps.Copy(until, one)
	}
	return nil
}
