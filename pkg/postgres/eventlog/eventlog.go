// Package eventlog reads the event log of one shard (EVT-1 to 3): the table events, which the instances service writes and
// migrates. The leader's relay and the instances service's own readers share it.
//
// # Order
//
// Entries are numbered by a sequence, within the transaction that writes them and after it has locked the instance. So
// the entries of one instance are numbered in the order of its transitions; but of two transactions the one with the
// smaller numbers may commit later.
//
// # Nothing is skipped
//
// A reader goes by number and must not pass one whose transaction may still commit (EVT-3). A [Reader] finds out so: it
// reads the sequence's last number, and if that is new to it, then takes a transaction id for itself. Whoever took a number
// up to that last one has a smaller id, for he had locked or written rows before. When the oldest transaction that still
// runs has no smaller id, all numbers up to the last one are decided: they are there to be seen, or never will be.
//
//	look 1: last number 17, own id 905, oldest that runs 900    17 is decided when the oldest is 905 or later
//	look 2: last number 23, own id 911, oldest that runs 906    17 is decided; 23 is when the oldest is 911 or later
//
// (The upper end of a snapshot will not do for the own id: it is only the id behind the last that has ended, and
// transactions with greater ids may run.) It rests on three things: a writer has its id before it takes a number, which
// the instances service sees to by writing events last; ids are given in order, and a snapshot's xmin is no greater than
// the least id that runs, the reader's own among them; and the entries are read with a snapshot that is taken after
// that xmin was. A look at an idle database decides at once, and one that finds no new number
// takes no id. No time is assumed anywhere; a transaction that writes and is left open, even one that has nothing to do
// with the log, in any database of the server, holds readers back for as long, and nothing is lost.
//
// # When the server crashes
//
// Numbers and ids of transactions that did not commit may be given again after a crash, or by a standby that takes over:
// the log of the sequence goes to disk with a commit, not before. So a reader forgets what it knew when it finds
// itself in another life of the server: the time since which that counts its statistics is another after each crash and
// on each server ([look]). And what is kept of a position (a cursor, an acknowledgement) must be the number of an entry
// that was read: a committed one is never given again. Only a standby that lacks commits can break that, and with them
// everything else that was read.
package eventlog

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

// Entry is one entry of the log.
type Entry struct {
	Seq      int64
	Instance [16]byte // the ulid
	// Revision is the instance's when the entry was written.
	Revision, Version   int32
	Namespace, Workflow string
	Type, Node, Key     string
	Time                time.Time
	Payload             []byte
	// Trace is the span that wrote it, as a W3C traceparent; empty if it was not sampled.
	Trace string
}

// Page is what one reading found.
type Page struct {
	// Entries are by number.
	Entries []Entry
	// UpTo is the number to go on behind: the last entry's, or what was asked for, if that is not behind the end.
	UpTo int64
	// More tells that a further reading would find more at once: the page is full, by entries or by bytes.
	More bool
	// Undecided tells that there are numbers behind UpTo whose transactions may still commit.
	Undecided bool
}

const (
	// maxFences bounds what a reader remembers while a transaction holds it back.
	maxFences = 64
	// maxPageBytes bounds the payloads of a page: one that comes to more ends there.
	maxPageBytes = 8 << 20
)

// fence says that all numbers up to last are decided when no transaction with an id below id runs.
type fence struct{ last, id int64 }

// Reader reads a shard's log. It is safe for concurrent use.
type Reader struct {
	pool *postgres.Pool

	mu      sync.Mutex
	life    int64   // of the server, which the rest is about
	fences  []fence // both rising
	decided int64
}

// NewReader makes a reader.
func NewReader(pool *postgres.Pool) *Reader { return &Reader{pool: pool} }

// The statements of a reading, in one round trip and one transaction; each has a snapshot of its own. readEntries goes by
// the primary key. The id is taken when the number is read, because a row is read before what is made of it.
//
// Sequential scans are off while it is planned: a plan that was made while the table was empty might be kept, and read all
// of it once it is large.
const (
	noScans  = `select set_config('enable_seqscan', 'off', true)`
	readLast = `select s.last, case when s.last > $1 then pg_current_xact_id()::text::bigint else 0 end,
	coalesce((extract(epoch from pg_stat_get_bgwriter_stat_reset_time()) * 1000000)::bigint, 0)
from (select case when is_called then last_value else 0 end as last from events_seq) s`
	readOldest   = `select pg_snapshot_xmin(pg_current_snapshot())::text::bigint`
	readEntries  = `select ` + entryColumns + ` from events where seq > $1 order by seq limit $2`
	entryColumns = `seq, instance_id, revision, version, namespace, workflow, type, node, key, recorded_at, payload,
	coalesce(trace, '')`
)

// look is what a look at the shard found. life is the time since which the server counts, which it counts anew from after
// a crash (and when an operator says so, which does no harm).
type look struct{ last, id, life, oldest int64 }

// queue asks for a look. known is the last number that is decided or has a fence.
func (l *look) queue(batch *pgx.Batch, known int64) {
	batch.Queue(readLast, known).QueryRow(func(row pgx.Row) error { return row.Scan(&l.last, &l.id, &l.life) })
	batch.Queue(readOldest).QueryRow(func(row pgx.Row) error { return row.Scan(&l.oldest) })
}

// Read reads the entries behind a number, at most so many; fewer, if they are large.
func (r *Reader) Read(ctx context.Context, after int64, limit int) (Page, error) {
	var l look
	var entries []Entry
	full := false
	batch := &pgx.Batch{}
	known := r.known()
	l.queue(batch, known.last)
	batch.Queue(noScans)
	batch.Queue(readEntries, after, limit).Query(func(rows pgx.Rows) (err error) {
		entries, full, err = scan(rows, limit)
		return err
	})
	if err := r.pool.SendBatch(ctx, batch).Close(); err != nil {
		return Page{}, fmt.Errorf("read events: %w", err)
	}
	// What another look has found since is not true of these entries, which were read before.
	decided := r.take(l, known)
	// A number behind the end was never given, or was lost with a server: what follows the end is new.
	page := Page{Entries: entries, UpTo: min(after, l.last), More: full, Undecided: l.last > max(decided, after)}
	for i, e := range entries {
		if e.Seq > decided {
			page.Entries, page.More = entries[:i], false
			break
		}
	}
	if n := len(page.Entries); n > 0 {
		page.UpTo = page.Entries[n-1].Seq
	}
	return page, nil
}

// Decided is the number up to which everything is decided, by a look of its own.
func (r *Reader) Decided(ctx context.Context) (int64, error) {
	decided, _, err := r.Look(ctx)
	return decided, err
}

// Look tells up to which number everything is decided, and the last number that was given.
func (r *Reader) Look(ctx context.Context) (decided, last int64, err error) {
	var l look
	batch := &pgx.Batch{}
	known := r.known()
	l.queue(batch, known.last)
	if err := r.pool.SendBatch(ctx, batch).Close(); err != nil {
		return 0, 0, fmt.Errorf("look at the end of the events: %w", err)
	}
	return r.take(l, known), l.last, nil
}

// knowledge is what a reader knew when a look began: up to which number all was decided, in which life of the server, and
// the last number that needs no fence any more.
type knowledge struct{ life, decided, last int64 }

// known is what the reader knows.
func (r *Reader) known() knowledge {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := knowledge{life: r.life, decided: r.decided, last: r.decided}
	if n := len(r.fences); n > 0 {
		k.last = r.fences[n-1].last
	}
	return k
}

// take takes in what a look found and tells up to which number all was decided when it was made: by what was known before
// it, and by itself. Looks may come in another order than they were made, and one that was made later may know more.
func (r *Reader) take(l look, before knowledge) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.life != r.life {
		r.life, r.fences, r.decided = l.life, nil, 0
	}
	decided := int64(0)
	if before.life == l.life {
		decided = before.decided
	}
	if n := len(r.fences); l.id > 0 && l.last > r.decided && (n == 0 || l.last > r.fences[n-1].last) {
		f := fence{l.last, l.id}
		if n > 0 {
			f.id = max(f.id, r.fences[n-1].id)
		}
		if n == maxFences {
			r.fences[n-1] = f
		} else {
			r.fences = append(r.fences, f)
		}
	}
	passed := 0
	for passed < len(r.fences) && r.fences[passed].id <= l.oldest {
		r.decided = r.fences[passed].last
		decided = r.decided
		passed++
	}
	r.fences = r.fences[passed:]
	return decided
}

// scan reads entries until there are so many, or many bytes of them.
func scan(rows pgx.Rows, limit int) (entries []Entry, full bool, err error) {
	bytes := 0
	for !full && rows.Next() {
		var e Entry
		var at pgtype.Timestamptz
		if err := rows.Scan(&e.Seq, &e.Instance, &e.Revision, &e.Version, &e.Namespace, &e.Workflow, &e.Type, &e.Node, &e.Key,
			&at, &e.Payload, &e.Trace); err != nil {
			return nil, false, err
		}
		e.Time = at.Time
		entries = append(entries, e)
		bytes += len(e.Payload)
		full = len(entries) == limit || bytes >= maxPageBytes
	}
	rows.Close() // reads past what is left
	return entries, full, rows.Err()
}
