package authstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/zeebo/xxh3"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// slots is how many slots each kind of limit has: at most so many rows of some fifty bytes, whatever is tried.
const slots = 1 << 20

// What limits count, as the column kind has it.
const (
	byPair int16 = iota
	byAccount
	byOrigin
)

// LimitError tells that there were too many tries, and when another is allowed.
type LimitError struct{ RetryAfter time.Duration }

func (e *LimitError) Error() string {
	return fmt.Sprintf("too many tries; another is allowed in %s", e.RetryAfter.Round(time.Second))
}

// attempt is one limit that a try counts for.
type attempt struct {
	slot  int32
	kind  int16
	key   string
	limit policy.Limit
	full  time.Time
}

// Try counts a try to prove oneself as an account, which there need not be, from an origin (policy.Origin). A try that one of
// the limits refuses counts for none of them; its error is a *LimitError.
func (s *Store) Try(ctx context.Context, account, origin string) error {
	key := nameKey(account)
	pair, whole, address := policy.TryLimits()
	return s.try(ctx, key, origin, []attempt{
		{kind: byPair, key: key + "\n" + origin, limit: pair},
		{kind: byAccount, key: key, limit: whole},
		{kind: byOrigin, key: origin, limit: address},
	})
}

// TryOrigin counts a try that is about no account.
func (s *Store) TryOrigin(ctx context.Context, origin string) error {
	pair, _, address := policy.TryLimits()
	return s.try(ctx, "", origin, []attempt{
		{kind: byPair, key: "\n" + origin, limit: pair}, {kind: byOrigin, key: origin, limit: address},
	})
}

// triedSQL reads by the unique index on accounts.key and the primary key of sign_in_origins.
const triedSQL = `
select seed, coalesce($1::timestamptz, clock_timestamp()), exists (
	select from sign_in_origins o join accounts a on a.id = o.account_id where a.key = $2 and o.origin = $3
) from auth_state`

func (s *Store) try(ctx context.Context, account, origin string, attempts []attempt) error {
	err := s.pool.InTx(ctx, postgres.TxOptions{Op: "count a try"}, func(ctx context.Context, tx pgx.Tx) error {
		var seed int64
		var now time.Time
		var known bool
		if err := tx.QueryRow(ctx, triedSQL, s.now(), account, origin).Scan(&seed, &now, &known); err != nil {
			return err
		}
		counted := slices.DeleteFunc(slices.Clone(attempts), func(a attempt) bool { return known && a.kind == byAccount })
		for i := range counted {
			counted[i].slot = slotOf(counted[i].key, seed)
		}
		if err := lockSlots(ctx, tx, counted); err != nil {
			return err
		}
		var wait time.Duration
		for i := range counted {
			a := &counted[i]
			var w time.Duration
			a.full, w = a.limit.Take(a.full, now)
			wait = max(wait, w)
		}
		if wait > 0 {
			return &LimitError{RetryAfter: wait}
		}
		return writeSlots(ctx, tx, counted)
	})
	return wrap("count a try", err)
}

func slotOf(key string, seed int64) int32 {
	return int32(xxh3.HashStringSeed(key, uint64(seed)) % slots) //nolint:gosec // a seed is any bits, a slot is small
}

// lockSlots reads the slots of attempts, and locks them in their order. Those that were empty have long been full.
func lockSlots(ctx context.Context, tx pgx.Tx, attempts []attempt) error {
	slices.SortFunc(attempts, func(a, b attempt) int { return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.kind, b.kind)) })
	for i := range attempts {
		a := &attempts[i]
		err := tx.QueryRow(ctx, `
			insert into sign_in_attempts as t (slot, kind, full_at) values ($1, $2, 'epoch')
			on conflict (slot, kind) do update set full_at = t.full_at returning full_at`, a.slot, a.kind).Scan(&a.full)
		if err != nil {
			return err
		}
	}
	return nil
}

func writeSlots(ctx context.Context, tx pgx.Tx, attempts []attempt) error {
	b := &pgx.Batch{}
	for _, a := range attempts {
		b.Queue("update sign_in_attempts set full_at = $3 where slot = $1 and kind = $2", a.slot, a.kind, a.full)
	}
	return tx.SendBatch(ctx, b).Close()
}
