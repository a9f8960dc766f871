package searchstore_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
	"github.com/wiggle-run/wiggle/services/search/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	running   = wigglev1.InstanceState_INSTANCE_STATE_RUNNING
	completed = wigglev1.InstanceState_INSTANCE_STATE_COMPLETED
	failed    = wigglev1.InstanceState_INSTANCE_STATE_FAILED
)

// open makes an empty search shard.
func open(t testing.TB) (*searchstore.Store, *postgres.Pool) {
	t.Helper()
	url := pgtest.NewDatabaseFrom(t, "search "+migrations.Checksum(), func(ctx context.Context, url string) error {
		pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "template", URL: url})
		if err != nil {
			return err
		}
		defer pool.Close()
		_, err = postgres.Migrate(ctx, pool, migrations.Set(), postgres.Apply)
		return err
	})
	pool := pgtest.OpenPool(t, url, searchstore.Configure)
	return searchstore.New(pool, "simple"), pool
}

// start is when the first document's instance was started; each that follows a second later.
var start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// instance makes the n-th instance.
func instance(n int, context string, change ...func(*wigglev1.Instance)) *wigglev1.Instance {
	in := &wigglev1.Instance{
		Id: keyOf(n).String(), Namespace: "default", Workflow: "order", Version: 1, Revision: 1, Priority: 5, State: running,
		Context: &wigglev1.Payload{Data: []byte(context)}, CreatedAt: timestamppb.New(start.Add(time.Duration(n) * time.Second)),
	}
	for _, f := range change {
		f(in)
	}
	return in
}

func keyOf(n int) document.Key {
	key := document.Key{Shard: n % 3}
	binary.BigEndian.PutUint64(key.ULID[8:], uint64(n))
	return key
}

func documentOf(t testing.TB, in *wigglev1.Instance) *document.Document {
	t.Helper()
	d, err := document.From(in)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// put writes instances as documents and returns how many were written.
func put(t testing.TB, s *searchstore.Store, instances ...*wigglev1.Instance) int {
	t.Helper()
	docs := make([]*document.Document, len(instances))
	for i, in := range instances {
		docs[i] = documentOf(t, in)
	}
	n, err := s.Upsert(t.Context(), docs)
	if err != nil {
		t.Fatal(postgres.Detail(err))
	}
	return n
}

func words(t testing.TB, s *searchstore.Store, text string) searchstore.Words {
	t.Helper()
	w, err := s.Parse(t.Context(), text)
	if err != nil {
		t.Fatal(postgres.Detail(err))
	}
	return w
}

// find lists what is found, by number, in the order of the hits.
func find(t testing.TB, s *searchstore.Store, text string, f searchstore.Filter) []int {
	t.Helper()
	if f.Namespace == "" {
		f.Namespace = "default"
	}
	q := &searchstore.Query{Filter: f}
	if text != "" {
		q.Words = words(t, s, text)
	}
	var hits []searchstore.Hit
	var err error
	if q.Words.Ranked {
		hits, _, err = s.Rank(t.Context(), q, searchstore.Window{}, nil, 1000)
	} else {
		hits, err = s.List(t.Context(), q, nil, 1000)
	}
	if err != nil {
		t.Fatal(postgres.Detail(err))
	}
	return numbers(hits)
}

func numbers(hits []searchstore.Hit) []int {
	list := make([]int, len(hits))
	for i, h := range hits {
		list[i] = int(binary.BigEndian.Uint64(h.ULID[8:]))
	}
	return list
}

func expect(t testing.TB, what string, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: found %v, want %v", what, got, want)
	}
}

func revision(n int32) func(*wigglev1.Instance) {
	return func(in *wigglev1.Instance) { in.Revision = n }
}

func ended(state wigglev1.InstanceState, after time.Duration) func(*wigglev1.Instance) {
	return func(in *wigglev1.Instance) {
		in.Revision, in.State = 2, state
		in.EndedAt = timestamppb.New(in.GetCreatedAt().AsTime().Add(after))
		if state == failed {
			in.Failure = &wigglev1.Failure{Type: "OutOfStock", Message: fmt.Sprintf("nothing left of %s", in.GetId())}
		}
	}
}

func of(namespace, workflow string) func(*wigglev1.Instance) {
	return func(in *wigglev1.Instance) { in.Namespace, in.Workflow = namespace, workflow }
}
