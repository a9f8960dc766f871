package searchstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/services/search/internal/document"
)

// Hit is a document that was found.
type Hit struct {
	document.Key

	Rank                float32
	Revision, Version   int32
	State, Priority     int16
	CreatedAt, EndedAt  time.Time
	Namespace, Workflow string
}

// Position is a place in the order of hits: the best first, then the newest, then by id.
type Position struct {
	Rank      float32
	CreatedAt time.Time
	ULID      [16]byte
}

// Position is the hit's place.
func (h *Hit) Position() Position {
	return Position{Rank: h.Rank, CreatedAt: h.CreatedAt, ULID: h.ULID}
}

// Window is a stretch of time whose matches are ranked together: those that were started after Lower, and no later than
// Upper. A zero Upper is no bound, and so is a zero Lower with Known; without, the window ends where it is large enough.
type Window struct {
	Upper, Lower time.Time
	Known        bool
}

// hitColumns are the columns of a hit but its rank.
const hitColumns = `d.shard, d.id, d.revision, d.version, d.state, d.priority, d.created_at, d.ended_at, d.namespace, d.workflow`

// List reads hits in the order of time, at most limit, behind a position unless that is nil. It walks documents_newest, or,
// where few match, sorts what the GIN index names.
func (s *Store) List(ctx context.Context, q *Query, after *Position, limit int) (hits []Hit, err error) {
	err = s.read(ctx, "list documents", func(ctx context.Context, tx pgx.Tx) error {
		q, some, err := q.narrow(ctx, tx)
		if err != nil || !some {
			hits = nil
			return err
		}
		sql, args := q.listSQL(after, limit)
		rows, err := tx.Query(ctx, sql, args...)
		hits, err = collect(rows, err, func(rows pgx.Rows) (h Hit, err error) {
			var ended pgtype.Timestamptz
			err = rows.Scan(&h.Shard, &h.ULID, &h.Revision, &h.Version, &h.State, &h.Priority, &h.CreatedAt, &ended,
				&h.Namespace, &h.Workflow)
			h.CreatedAt, h.EndedAt = h.CreatedAt.UTC(), when(ended)
			return h, err
		})
		return err
	})
	return hits, err
}

func (q *Query) listSQL(after *Position, limit int) (sql string, args []any) {
	w := q.conditions(false)
	if after != nil {
		w.and("(d.created_at, d.id) < (%s, %s)", w.arg(timestamp(after.CreatedAt)), w.arg(uuid(after.ULID)))
	}
	return "select " + hitColumns + " from documents d where " + w.sql.String() +
		" order by d.created_at desc, d.id desc limit " + strconv.Itoa(limit), w.args
}

// Rank reads the best hits of a window, at most limit, behind a position unless that is nil. It answers the window with its
// lower end, so that the pages that follow are of the same one.
func (s *Store) Rank(ctx context.Context, q *Query, window Window, after *Position, limit int) ([]Hit, Window, error) {
	hits, lower, err := s.rank(ctx, q, window, after, limit)
	if err != nil {
		return nil, window, err
	}
	if !window.Known && len(hits) == 0 && !lower.IsZero() {
		// As many as make a window were started at the same time. They are one, with all others of that time.
		lower = lower.Add(-time.Microsecond)
		window.Lower, window.Known = lower, true
		hits, _, err = s.rank(ctx, q, window, after, limit)
		return hits, window, err
	}
	if !window.Known {
		window.Lower, window.Known = lower, true
	}
	return hits, window, nil
}

func (s *Store) rank(ctx context.Context, q *Query, window Window, after *Position, limit int) (hits []Hit, lower time.Time, err error) {
	err = s.read(ctx, "search documents", func(ctx context.Context, tx pgx.Tx) error {
		hits = nil
		q, some, err := q.narrow(ctx, tx)
		if err != nil || !some {
			return err
		}
		sql, args := q.rankSQL(window, after, limit)
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var bound pgtype.Timestamptz
			h, found, err := scanRanked(rows, &bound)
			if err != nil {
				return err
			}
			lower = when(bound)
			if found {
				hits = append(hits, h)
			}
		}
		return rows.Err()
	})
	return hits, lower, err
}

// rankSQL finds the matches of a window, newest first, as far as it goes; then where it ends; and ranks what lies within. At
// its lower end a window has all matches of a time or none, as many instances may be started at once.
func (q *Query) rankSQL(window Window, after *Position, limit int) (sql string, args []any) {
	w := q.conditions(false)
	if !window.Upper.IsZero() {
		w.and("d.created_at <= %s", w.arg(timestamp(window.Upper)))
	}
	var bound string
	size := " limit " + strconv.Itoa(WindowSize)
	if window.Known {
		size = ""
		lower := infinite(pgtype.NegativeInfinity)
		if !window.Lower.IsZero() {
			lower = timestamp(window.Lower)
		}
		bound = w.arg(lower) + "::timestamptz"
		w.and("d.created_at > %s", bound)
	} else {
		bound = fmt.Sprintf("(select min(created_at) from matches having count(*) = %d)", WindowSize)
	}
	matches := "select " + hitColumns + ", d.words from documents d where " + w.sql.String() +
		" order by d.created_at desc, d.id desc" + size
	words := w.arg(q.Words.Query)
	position := ""
	if after != nil {
		position = fmt.Sprintf(" and (r.rank, r.created_at, r.id) < (%s::float4, %s, %s)",
			w.arg(after.Rank), w.arg(timestamp(after.CreatedAt)), w.arg(uuid(after.ULID)))
	}
	return `with matches as materialized (` + matches + `),
bound as materialized (select ` + bound + ` as lower)
select b.lower, h.* from bound b left join lateral (
	select r.shard, r.id, r.revision, r.version, r.state, r.priority, r.created_at, r.ended_at, r.namespace, r.workflow, r.rank
	from (select m.*, ts_rank_cd(m.words, ` + words + `::tsquery, 33) as rank from matches m) r
	where r.created_at > coalesce(b.lower, '-infinity')` + position + `
	order by r.rank desc, r.created_at desc, r.id desc limit ` + strconv.Itoa(limit) + `
) h on true`, w.args
}

// scanRanked reads a row of Rank: the bound, and a hit if there is one.
func scanRanked(rows pgx.Rows, bound *pgtype.Timestamptz) (h Hit, found bool, err error) {
	var (
		id                       pgtype.UUID
		shard, revision, version pgtype.Int4
		state, priority          pgtype.Int2
		created, ended           pgtype.Timestamptz
		namespace, workflow      pgtype.Text
		rank                     pgtype.Float4
	)
	err = rows.Scan(bound, &shard, &id, &revision, &version, &state, &priority, &created, &ended, &namespace, &workflow, &rank)
	if err != nil {
		return h, false, err
	}
	if bound.InfinityModifier != pgtype.Finite {
		bound.Valid = false
	}
	return Hit{
		Key: document.Key{Shard: int(shard.Int32), ULID: id.Bytes}, Rank: rank.Float32, Revision: revision.Int32, Version: version.Int32,
		State: state.Int16, Priority: priority.Int16, CreatedAt: when(created), EndedAt: when(ended),
		Namespace: namespace.String, Workflow: workflow.String,
	}, id.Valid, nil
}
