package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore/internal/db"
)

// activeTokens reads an instance's part of tokens_of_instance and sorts it; apart,
// as the sorted primary key must not look like a way to find the first ones. State
// 6 is DONE, 7 FAILED, 8 CANCELLED.
const activeTokens = `with t as materialized (
	select ` + tokenColumns + tokenNoPayloads + ` from tokens t where t.instance_id = $1 and t.state not in (6, 7, 8)
)
select * from t order by t.id limit $2`

// Instance implements [store.Store]. With tokens it is read in one snapshot, so that
// they fit the instance's state.
func (s *Store) Instance(ctx context.Context, id machine.ID, tokens int) (store.InstanceView, error) {
	done, err := s.reading(ctx)
	if err != nil {
		return store.InstanceView{}, err
	}
	defer done()
	if tokens <= 0 {
		row, err := s.queries.Instance(ctx, id)
		if err != nil {
			return store.InstanceView{}, wrapRead("read instance", err)
		}
		return viewOf(&row)
	}
	var view store.InstanceView
	snapshot := postgres.TxOptions{Op: "read instance", Isolation: pgx.RepeatableRead, ReadOnly: true}
	err = s.pool.InTx(ctx, snapshot, func(ctx context.Context, tx pgx.Tx) error {
		row, err := s.queries.WithTx(tx).Instance(ctx, id)
		if err != nil {
			return err
		}
		if view, err = viewOf(&row); err != nil || view.Active == 0 {
			return err
		}
		rows, err := tx.Query(ctx, activeTokens, uuid(id), tokens)
		view.Tokens, err = collect(rows, err, scanToken)
		return err
	})
	if err != nil {
		return store.InstanceView{}, wrapRead("read instance", err)
	}
	return view, nil
}

// wrapRead adds words to an error; what is not there is not an error of the database.
func wrapRead(what string, err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return store.ErrNotFound
	}
	return fmt.Errorf("%s: %w", what, err)
}

func viewOf(row *db.InstanceRow) (store.InstanceView, error) {
	in, err := decodeInstance(&row.Instance)
	if err != nil {
		return store.InstanceView{}, err
	}
	if row.Live {
		in.Context = machine.Payload{ContentType: row.ViewType, Data: row.View}
	}
	return store.InstanceView{Instance: in, Active: int(row.Active)}, nil
}

// Ended implements [store.Store].
func (s *Store) Ended(ctx context.Context, ids []machine.ID) ([]machine.ID, error) {
	ended, err := s.queries.Ended(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("look for ended instances: %w", err)
	}
	return ended, nil
}

// History implements [store.Store].
func (s *Store) History(ctx context.Context, id machine.ID, after store.HistoryKey, limit int) ([]store.HistoryRow, error) {
	done, err := s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	rows, err := s.queries.History(ctx, db.HistoryParams{
		Instance: id, RecordedAt: afterTime(after.RecordedAt), Ord: after.Order, Token: after.Token, Position: after.Position,
		Lim: int32(limit), //nolint:gosec // a page
	})
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	list := make([]store.HistoryRow, len(rows))
	for i, r := range rows {
		entry := &wigglev1.HistoryEntry{}
		if err := proto.Unmarshal(r.Entry, entry); err != nil {
			return nil, fmt.Errorf("read history entry: %w", err)
		}
		list[i] = store.HistoryRow{
			Key:   store.HistoryKey{RecordedAt: when(r.RecordedAt), Order: r.Ord, Token: r.TokenID, Position: r.Position},
			Entry: entry,
		}
	}
	return list, nil
}

// afterTime is the time of a key; the zero key is before all.
func afterTime(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return timestamp(t)
}
