// Package merge makes one page of a list out of one page of each shard.
//
// Rows come newest first, by (created_at, ulid), as package pagetoken orders them. A merged page is cut where a shard's page
// ends that has more behind it: what follows on that shard may come before what others have. So the next page, which
// starts behind the last row of this one on every shard, neither repeats nor skips a row (SHD-26). An instance that two
// shards name is told once (SHD-37).
//
// The package is pure.
package merge

import (
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/wiggle-run/wiggle/pkg/pagetoken"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Page is one shard's page.
type Page struct {
	// Rows are in order.
	Rows []*wigglev1.Instance
	// Next is the shard's next page token, empty on its last page.
	Next string
}

// Result is the merged page.
type Result struct {
	Rows []*wigglev1.Instance
	// Next is the next page token, empty on the last page.
	Next string
	// Counts is how many rows each page gave, in the order of the pages.
	Counts []int64
}

// Key is where a row stands in the order, with the filter's hash. An id without a ulid, from before sharding, gets a
// place that depends on its text.
func Key(row *wigglev1.Instance, filterHash uint64) (pagetoken.Token, error) {
	id, err := shardid.ParseInstance(row.GetId())
	if err != nil {
		return pagetoken.Token{}, fmt.Errorf("a shard listed an instance whose id is none: %w", err)
	}
	token := pagetoken.Token{CreatedAt: row.GetCreatedAt().AsTime(), FilterHash: filterHash}
	if u, ok := id.ULID(); ok {
		token.ULID = u
	} else {
		token.ULID = xxh3.HashString128(row.GetId()).Bytes()
	}
	return token, nil
}

// cursor walks over one page.
type cursor struct {
	page    Page
	keys    []pagetoken.Token
	next    int
	barrier *pagetoken.Token // behind which the shard has more
}

// Merge merges pages into one of at most limit rows.
func Merge(pages []Page, limit int, filterHash uint64) (Result, error) {
	cursors := make([]*cursor, len(pages))
	for i, p := range pages {
		c, err := newCursor(p, filterHash)
		if err != nil {
			return Result{}, err
		}
		cursors[i] = c
	}
	res := Result{Counts: make([]int64, len(pages))}
	var last pagetoken.Token
	for len(res.Rows) < limit {
		i, blocked := first(cursors)
		if i < 0 {
			if blocked != nil {
				res.Next = pagetoken.Encode(further(last, *blocked, len(res.Rows) == 0))
			}
			return res, nil
		}
		c := cursors[i]
		row, key := c.page.Rows[c.next], c.keys[c.next]
		c.next++
		if n := len(res.Rows); n > 0 && res.Rows[n-1].GetId() == row.GetId() {
			continue
		}
		res.Rows, last = append(res.Rows, row), key
		res.Counts[i]++
	}
	if more(cursors, res.Rows) {
		res.Next = pagetoken.Encode(last)
	}
	return res, nil
}

func newCursor(p Page, filterHash uint64) (*cursor, error) {
	c := &cursor{page: p, keys: make([]pagetoken.Token, len(p.Rows))}
	for i, row := range p.Rows {
		key, err := Key(row, filterHash)
		if err != nil {
			return nil, err
		}
		if i > 0 && pagetoken.Compare(c.keys[i-1], key) > 0 {
			return nil, fmt.Errorf("a shard listed instance %s out of order", row.GetId())
		}
		c.keys[i] = key
	}
	if p.Next != "" {
		barrier, err := pagetoken.Decode(p.Next)
		if err != nil {
			return nil, fmt.Errorf("a shard's page token: %w", err)
		}
		barrier.FilterHash = filterHash
		c.barrier = &barrier
	}
	return c, nil
}

// first is the cursor with the next row of all, or -1 if there is none that may be given: then blocked is the barrier that
// keeps others back, if any.
func first(cursors []*cursor) (best int, blocked *pagetoken.Token) {
	best = -1
	for i, c := range cursors {
		if c.next == len(c.keys) {
			if c.barrier != nil && (blocked == nil || pagetoken.Compare(*c.barrier, *blocked) < 0) {
				blocked = c.barrier
			}
			continue
		}
		if best < 0 || pagetoken.Compare(c.keys[c.next], cursors[best].keys[cursors[best].next]) < 0 {
			best = i
		}
	}
	if best >= 0 && blocked != nil && pagetoken.Compare(*blocked, cursors[best].keys[cursors[best].next]) < 0 {
		return -1, blocked
	}
	return best, blocked
}

// further is where the next page starts when a barrier ended this one. Behind the last row if there is one; an empty page
// with more behind it starts at the barrier, or lists would never end.
func further(last, barrier pagetoken.Token, empty bool) pagetoken.Token {
	if empty || pagetoken.Compare(barrier, last) > 0 {
		return barrier
	}
	return last
}

// more tells whether anything follows a full page, besides what it has told already.
func more(cursors []*cursor, rows []*wigglev1.Instance) bool {
	last := rows[len(rows)-1].GetId()
	for _, c := range cursors {
		if c.barrier != nil {
			return true
		}
		for _, row := range c.page.Rows[c.next:] {
			if row.GetId() != last {
				return true
			}
		}
	}
	return false
}
