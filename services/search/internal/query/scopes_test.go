package query_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/identity"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
)

// indexed is an instance that was indexed.
type indexed struct {
	id, namespace, workflow string
	state                   wigglev1.InstanceState
}

var (
	namespaces = []string{"default", "orders", "orders_eu"}
	workflows  = []string{"pay", "payout", "re", "refund", "refund_all", "ship"}
	patterns   = []string{"pay", "pay*", "refund", "re*", "ship", "refund_*", "none", "x*"}
)

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// callerOf is somebody with random scopes, and what these hold, said in another way than the code does.
func callerOf(t *testing.T, r *rand.Rand) (ctx context.Context, permissions []string, sees func(indexed) bool) {
	t.Helper()
	type scope struct{ namespace, workflow string }
	var scopes []scope
	for range r.IntN(4) {
		s := scope{pick(r, append([]string{"orders*", "o*", "*", "no*"}, namespaces...)), pick(r, append([]string{"*"}, patterns...))}
		if s == (scope{"*", "*"}) {
			continue // who may see everything is sent along by nobody
		}
		scopes = append(scopes, s)
		permissions = append(permissions, "instance.read:"+s.namespace+"/"+s.workflow)
	}
	permissions = append(permissions, "instance.start", "event.read:default/*") // which lets nobody search
	p, err := identity.New(&wiggleinternalv1.Principal{Name: "alice", Permissions: permissions})
	if err != nil {
		t.Fatal(err)
	}
	within := func(pattern, name string) bool {
		if pattern[len(pattern)-1] == '*' {
			return len(name) >= len(pattern)-1 && name[:len(pattern)-1] == pattern[:len(pattern)-1]
		}
		return pattern == name
	}
	return identity.With(t.Context(), p), permissions, func(in indexed) bool {
		return slices.ContainsFunc(scopes, func(s scope) bool { return within(s.namespace, in.namespace) && within(s.workflow, in.workflow) })
	}
}

// Whatever somebody may see, searches and counts answer exactly that, in the same order as to who sees all, page by page; and a
// page token is no key (SRC-6, AUT-3).
func TestScopes(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 6))
	s := newScene(t, 2)
	known := map[string]indexed{}
	for n := range 90 {
		in := indexed{idOf(n), pick(r, namespaces), pick(r, workflows), wigglev1.InstanceState(1 + 2*r.IntN(2))}
		known[in.id] = in
		s.put(n, fmt.Sprintf(`{"city":"%s","n":%d}`, strings.Repeat("Paris ", 1+r.IntN(3)), n), func(i *wigglev1.Instance) {
			i.Namespace, i.Workflow, i.State = in.namespace, in.workflow, in.state
		})
	}
	for range 60 {
		ctx, permissions, sees := callerOf(t, r)
		filter := &wigglev1.SearchFilter{Namespace: pick(r, namespaces)}
		if r.IntN(3) == 0 {
			filter.Workflows = []string{pick(r, workflows), pick(r, workflows)}
		}
		query := pick(r, []string{"", "paris", "-rome", "paris city", "rome"})
		what := fmt.Sprintf("%q by %q in %v", query, permissions, filter)
		all, _ := s.readAll(t.Context(), query, filter, 100)
		want := slices.DeleteFunc(slices.Clone(all), func(id string) bool { return !sees(known[id]) })
		got, token := s.readAll(ctx, query, filter, int32(1+r.IntN(7)))
		if !slices.Equal(got, want) {
			t.Errorf("%s: found %v, want %v", what, got, want)
		}
		s.countsOf(ctx, what, query, filter, want, known)
		if token != "" { // of a page that another has turned
			other, _, othersees := callerOf(t, r)
			res, err := s.Search(other, &wigglev1.SearchRequest{Query: query, Filter: filter, PageSize: 100, PageToken: token})
			if err != nil || slices.ContainsFunc(ids(res), func(id string) bool { return !othersees(known[id]) }) {
				t.Errorf("%s: with a token of another's somebody found %v, %v", what, ids(res), err)
			}
		}
	}
}

// readAll reads a search to its end, and gives the token of its first page.
func (s *scene) readAll(ctx context.Context, query string, filter *wigglev1.SearchFilter, size int32) (found []string, first string) {
	s.Helper()
	req := &wigglev1.SearchRequest{Query: query, Filter: filter, PageSize: size}
	for {
		res, err := s.Search(ctx, req)
		if err != nil {
			s.Fatal(err)
		}
		found = append(found, ids(res)...)
		shown := int64(0)
		for _, shard := range res.GetShards() {
			shown += shard.GetCount()
		}
		if int(shown) != len(res.GetHits()) {
			s.Errorf("%q: shards say that they have given %d of %d hits", query, shown, len(res.GetHits()))
		}
		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			return found, first
		}
		if first == "" {
			first = req.GetPageToken()
		}
	}
}

// countsOf holds facets against what was found.
func (s *scene) countsOf(
	ctx context.Context, what, query string, filter *wigglev1.SearchFilter, want []string, known map[string]indexed,
) {
	s.Helper()
	facets, err := s.CountFacets(ctx, &wigglev1.CountFacetsRequest{Query: query, Filter: filter})
	if err != nil {
		s.Fatal(err)
	}
	workflows, states := map[string]int64{}, map[wigglev1.InstanceState]int64{}
	for _, id := range want {
		workflows[known[id].workflow]++
		states[known[id].state]++
	}
	ok := facets.GetTotal() == int64(len(want)) && len(facets.GetByWorkflow()) == len(workflows) && len(facets.GetByState()) == len(states)
	for _, f := range facets.GetByWorkflow() {
		ok = ok && workflows[f.GetWorkflow()] == f.GetCount()
	}
	for _, f := range facets.GetByState() {
		ok = ok && states[f.GetState()] == f.GetCount()
	}
	for _, shard := range facets.GetShards() {
		ok = ok && shard.GetCount() <= int64(len(want))
	}
	if !ok {
		s.Errorf("%s: counted %v, want %v and %v", what, facets, workflows, states)
	}
}
