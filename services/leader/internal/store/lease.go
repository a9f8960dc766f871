// Package store is the leader's SQL: the lease on home, and what its duties write on each shard. Every write of a duty is
// fenced: it changes a row only if that was written under no later term.
package store

import (
	"context"
	"fmt"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
)

// Lease is the row of the lease on home.
type Lease struct{ pool *postgres.Pool }

// NewLease makes the lease of a home shard.
func NewLease(pool *postgres.Pool) *Lease { return &Lease{pool: pool} }

// try takes, renews or observes. The row is written only where it may be taken or renewed: others neither write nor wait
// for one who does. Of two that find it over, the second waits for the first, looks again and finds it held. The last
// condition is for a database whose clock was set back: a lease that ends later than any could is over.
const try = `with taken as (
	update leader_lease l
	set term = case when l.holder = $1 and l.term = $2 and l.until > clock_timestamp()
			then l.term else greatest(l.term, $3) + 1 end,
		holder = $1, until = clock_timestamp() + $4::bigint * interval '1 microsecond'
	where l.only_row and (l.holder = $1 or l.until <= clock_timestamp()
		or l.until > clock_timestamp() + 2 * $4::bigint * interval '1 microsecond')
	returning l.term
)
select exists (select from taken), coalesce((select t.term from taken t), l.term),
	case when exists (select from taken) then $1 else l.holder end
from leader_lease l`

// Try implements [election.Lease].
func (l *Lease) Try(ctx context.Context, ask election.Ask) (election.Standing, error) {
	var s election.Standing
	err := l.pool.QueryRow(ctx, try, ask.Holder, ask.Term, ask.Floor, ask.Length.Microseconds()).Scan(&s.Held, &s.Term, &s.Holder)
	if err != nil {
		return election.Standing{}, fmt.Errorf("ask for the lease: %w", err)
	}
	return s, nil
}

const release = `update leader_lease set holder = '', until = '-infinity' where only_row and holder = $1 and term = $2`

// Release implements [election.Lease].
func (l *Lease) Release(ctx context.Context, holder string, term int64) error {
	if _, err := l.pool.Exec(ctx, release, holder, term); err != nil {
		return fmt.Errorf("give the lease back: %w", err)
	}
	return nil
}
