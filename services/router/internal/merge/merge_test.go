package merge_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/wiggle-run/wiggle/pkg/pagetoken"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/merge"
)

// shard is a list as an instances process would page it.
type shard struct {
	id   int
	rows []*wigglev1.Instance
}

func (s *shard) add(millis int64, n int) *wigglev1.Instance {
	var u ulid.ULID
	_ = u.SetTime(uint64(millis))
	copy(u[6:], fmt.Sprintf("%010d", n))
	id := shardid.NewInstance(s.id, u).String()
	if s.id == 0 && n%5 == 0 {
		id = fmt.Sprintf("wfi_legacy%d", n)
	}
	row := &wigglev1.Instance{Id: id, CreatedAt: timestamppb.New(time.UnixMilli(millis))}
	s.rows = append(s.rows, row)
	return row
}

func key(row *wigglev1.Instance) pagetoken.Token {
	k, err := merge.Key(row, 7)
	if err != nil {
		panic(err)
	}
	return k
}

// page answers at most size rows after the token; fewer, even none, if short says so.
func (s *shard) page(token string, size, short int) merge.Page {
	slices.SortFunc(s.rows, func(a, b *wigglev1.Instance) int { return pagetoken.Compare(key(a), key(b)) })
	var rest []*wigglev1.Instance
	for _, row := range s.rows {
		if token != "" {
			after, err := pagetoken.Decode(token)
			if err != nil {
				panic(err)
			}
			if pagetoken.Compare(key(row), after) <= 0 {
				continue
			}
		}
		rest = append(rest, row)
	}
	size = min(size, max(short, 1))
	if len(rest) <= size {
		return merge.Page{Rows: rest}
	}
	return merge.Page{Rows: rest[:size], Next: pagetoken.Encode(key(rest[size-1]))}
}

// Whatever the shards hold, however their pages are cut, and while newer rows are added: the pages together are all rows
// that were there at the first page, once, in order.
func TestPagesNeitherRepeatNorSkip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shards := make([]*shard, rapid.IntRange(1, 5).Draw(t, "shards"))
		var want []*wigglev1.Instance
		n := 0
		for i := range shards {
			shards[i] = &shard{id: i}
			for range rapid.IntRange(0, 20).Draw(t, "rows") {
				n++
				want = append(want, shards[i].add(int64(rapid.IntRange(1000, 1010).Draw(t, "time")), n))
			}
		}
		slices.SortFunc(want, func(a, b *wigglev1.Instance) int { return pagetoken.Compare(key(a), key(b)) })
		limit := rapid.IntRange(1, 12).Draw(t, "limit")

		var got []*wigglev1.Instance
		token := ""
		for round := 0; ; round++ {
			if round > 300 {
				t.Fatal("the list does not end")
			}
			var pages []merge.Page
			for _, s := range shards {
				pages = append(pages, s.page(token, limit, rapid.IntRange(1, 20).Draw(t, "short")))
			}
			res, err := merge.Merge(pages, limit, 7)
			if err != nil {
				t.Fatal(err)
			}
			if len(res.Rows) > limit {
				t.Fatalf("%d rows, limit %d", len(res.Rows), limit)
			}
			sum := int64(0)
			for _, c := range res.Counts {
				sum += c
			}
			if sum != int64(len(res.Rows)) {
				t.Fatalf("counts %v of %d rows", res.Counts, len(res.Rows))
			}
			got = append(got, res.Rows...)
			if token = res.Next; token == "" {
				break
			}
			for _, s := range shards { // newer than any page
				n++
				s.add(2000+int64(round), n)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %d rows, want %d", len(got), len(want))
		}
	})
}

func TestOnceWhileOnTwoShards(t *testing.T) {
	t.Parallel()
	a, b := &shard{id: 1}, &shard{id: 2}
	row := a.add(5, 1)
	b.rows = append(b.rows, row)
	b.add(4, 2)
	res, err := merge.Merge([]merge.Page{a.page("", 10, 10), b.page("", 10, 10)}, 10, 7)
	if err != nil || len(res.Rows) != 2 || res.Next != "" {
		t.Fatalf("got %v, %v", res, err)
	}
	res, err = merge.Merge([]merge.Page{{Rows: []*wigglev1.Instance{row}}, {Rows: []*wigglev1.Instance{row}}}, 1, 7)
	if err != nil || len(res.Rows) != 1 || res.Next != "" {
		t.Fatalf("got %v, %v", res, err)
	}
}

func TestBrokenShards(t *testing.T) {
	t.Parallel()
	s := &shard{id: 1}
	old, young := s.add(1, 1), s.add(2, 2)
	for name, page := range map[string]merge.Page{
		"order": {Rows: []*wigglev1.Instance{old, young}},
		"id":    {Rows: []*wigglev1.Instance{{Id: "x"}}},
		"token": {Next: "x"},
	} {
		if _, err := merge.Merge([]merge.Page{page}, 10, 7); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// An empty page with more behind it moves on.
	res, err := merge.Merge([]merge.Page{{Next: pagetoken.Encode(key(young))}, {Rows: []*wigglev1.Instance{old}}}, 10, 7)
	if err != nil || len(res.Rows) != 0 || res.Next != pagetoken.Encode(key(young)) {
		t.Fatalf("got %+v, %v", res, err)
	}
}
