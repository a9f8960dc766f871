package searchstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
)

func TestFilters(t *testing.T) { // SRC-3
	t.Parallel()
	s, _ := open(t)
	put(t, s,
		instance(1, `{"name":"Ada","city":"Paris","total":10,"paid":true}`),
		instance(2, `{"name":"Bob","city":"Rome","total":20.5,"paid":false}`, ended(completed, time.Hour)),
		instance(3, `{"name":"Ada Byron","city":"Rome","total":30}`, ended(failed, time.Minute)),
		instance(4, `{"name":"Cyd","city":"Paris","total":"30"}`, of("default", "refund")),
		instance(5, `{"name":"Ada","city":"Paris"}`, of("other", "order")),
	)
	ten, twenty, third := 10.0, 20.5, start.Add(3*time.Second)
	lexemes := func(l ...string) searchstore.Filter { return searchstore.Filter{Lexemes: l} }
	for name, test := range map[string]struct {
		words  string
		filter searchstore.Filter
		want   []int
	}{
		"all":                {"", searchstore.Filter{}, []int{4, 3, 2, 1}},
		"namespace":          {"", searchstore.Filter{Namespace: "other"}, []int{5}},
		"no such namespace":  {"", searchstore.Filter{Namespace: "none"}, nil},
		"word":               {"ada", searchstore.Filter{}, []int{1, 3}},
		"word in capitals":   {"ADA", searchstore.Filter{}, []int{1, 3}},
		"two words":          {"ada rome", searchstore.Filter{}, []int{3}},
		"or":                 {"bob or cyd", searchstore.Filter{}, []int{4, 2}},
		"without":            {"ada -rome", searchstore.Filter{}, []int{1}},
		"only without":       {"-rome", searchstore.Filter{}, []int{4, 1}},
		"phrase":             {`"ada byron"`, searchstore.Filter{}, []int{3}},
		"no phrase":          {`"byron ada"`, searchstore.Filter{}, nil},
		"number":             {"20.5", searchstore.Filter{}, []int{2}},
		"failure":            {"outofstock", searchstore.Filter{}, []int{3}},
		"field names":        {"city", searchstore.Filter{}, nil},
		"workflow":           {"", searchstore.Filter{Workflows: []string{"refund"}}, []int{4}},
		"workflows":          {"", searchstore.Filter{Workflows: []string{"refund", "order"}}, []int{4, 3, 2, 1}},
		"state":              {"", searchstore.Filter{States: []wigglev1.InstanceState{completed, failed}}, []int{3, 2}},
		"word and state":     {"ada", searchstore.Filter{States: []wigglev1.InstanceState{failed}}, []int{3}},
		"text":               {"", lexemes(document.StringLexeme("/city", "Paris")), []int{4, 1}},
		"number at a path":   {"", lexemes(document.NumberLexeme("/total", 30)), []int{3}},
		"truth value":        {"", lexemes(document.BoolLexeme("/paid", false)), []int{2}},
		"two conditions":     {"", lexemes(document.StringLexeme("/city", "Paris"), document.BoolLexeme("/paid", true)), []int{1}},
		"key":                {"", lexemes(document.KeyLexeme("k")), nil},
		"at least":           {"", searchstore.Filter{Ranges: []searchstore.Range{{Path: "/total", AtLeast: &twenty}}}, []int{3, 2}},
		"at most":            {"", searchstore.Filter{Ranges: []searchstore.Range{{Path: "/total", AtMost: &twenty}}}, []int{2, 1}},
		"between":            {"ada or bob", searchstore.Filter{Ranges: []searchstore.Range{{Path: "/total", AtLeast: &ten, AtMost: &twenty}}}, []int{2, 1}},
		"any number":         {"", searchstore.Filter{Ranges: []searchstore.Range{{Path: "/total"}}}, []int{3, 2, 1}},
		"created":            {"", searchstore.Filter{CreatedFrom: start.Add(2 * time.Second), CreatedBefore: third}, []int{2}},
		"ended":              {"", searchstore.Filter{EndedFrom: start, EndedBefore: start.Add(time.Hour)}, []int{3}},
		"ended, open":        {"", searchstore.Filter{EndedFrom: start.Add(time.Hour)}, []int{2}},
		"everything at once": {"rome", searchstore.Filter{Workflows: []string{"order"}, States: []wigglev1.InstanceState{failed}, CreatedFrom: third, EndedFrom: third, Lexemes: []string{document.NumberLexeme("/total", 30)}, Ranges: []searchstore.Range{{Path: "/total", AtLeast: &ten}}}, []int{3}},
	} {
		expect(t, name, find(t, s, test.words, test.filter), test.want...)
	}
}

// Better matches come first, and of equal ones the newest.
func TestRanking(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	put(t, s,
		instance(1, `["tea tea tea"]`), instance(2, `["coffee and some tea"]`), instance(3, `["tea"]`), instance(4, `["tea"]`),
		instance(5, `["green is the best of tea"]`), instance(6, `["green tea"]`))
	got := find(t, s, "tea", searchstore.Filter{})
	if len(got) != 6 || got[0] != 1 || slices.Index(got, 4) > slices.Index(got, 3) {
		t.Errorf("ranked %v", got)
	}
	expect(t, "near each other", find(t, s, "green tea", searchstore.Filter{}), 6, 5)
}

func TestTexts(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	long := strings.Repeat("filler words that nobody asked for ", 30)
	put(t, s,
		instance(1, `{"note":"the \"Green\"\n tea <b>was</b> cold `+long+` and so was the GREEN cup"}`), instance(2, `"no"`, ended(failed, 0)),
		instance(3, `["`+strings.Repeat("much ", 20_000)+`","green"]`))
	keys := []document.Key{keyOf(1), keyOf(2), keyOf(3), keyOf(9)}
	texts, err := s.Texts(t.Context(), words(t, s, "green or left -blue"), keys)
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) != 3 {
		t.Errorf("got %d texts: %v", len(texts), texts)
	}
	first := texts[keyOf(1)].Snippets
	if len(first) != 2 || !strings.Contains(first[0], "\uE000Green\uE001") || !strings.Contains(first[1], "\uE000GREEN\uE001") ||
		strings.Contains(first[0], "\n") || len(first[0]) > 300 {
		t.Errorf("the snippets are %q", first)
	}
	second := texts[keyOf(2)]
	if !strings.HasPrefix(second.Failure, "OutOfStock: nothing left") || len(second.Snippets) != 1 || !strings.Contains(second.Snippets[0], "\uE000left\uE001") {
		t.Errorf("the failure gives %+v", second)
	}
	if third := texts[keyOf(3)]; len(third.Snippets) != 0 {
		t.Errorf("a word beyond what is looked through gives %q", third.Snippets)
	}
	texts, err = s.Texts(t.Context(), searchstore.Words{}, keys)
	if err != nil || len(texts[keyOf(1)].Snippets) != 0 || texts[keyOf(2)].Failure == "" {
		t.Errorf("without words: %+v, %v", texts, err)
	}
}

func TestFacets(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	put(t, s,
		instance(1, `{"a":"tea"}`), instance(2, `{"a":"tea"}`, ended(completed, 1)), instance(3, `{"a":"coffee"}`, ended(completed, 1)),
		instance(4, `{"a":"tea"}`, of("default", "refund")), instance(5, `{"a":"tea"}`, of("other", "order")))
	for name, test := range map[string]struct {
		words  string
		filter searchstore.Filter
		want   []searchstore.Facet
	}{
		"all":       {"", searchstore.Filter{}, []searchstore.Facet{{"order", 1, 1}, {"order", 3, 2}, {"refund", 1, 1}}},
		"columns":   {"", searchstore.Filter{Workflows: []string{"order"}, States: []wigglev1.InstanceState{completed}}, []searchstore.Facet{{"order", 3, 2}}},
		"words":     {"tea", searchstore.Filter{}, []searchstore.Facet{{"order", 1, 1}, {"order", 3, 1}, {"refund", 1, 1}}},
		"both":      {"tea", searchstore.Filter{Workflows: []string{"order"}, States: []wigglev1.InstanceState{completed}}, []searchstore.Facet{{"order", 3, 1}}},
		"condition": {"", searchstore.Filter{Lexemes: []string{document.StringLexeme("/a", "coffee")}}, []searchstore.Facet{{"order", 3, 1}}},
	} {
		test.filter.Namespace = "default"
		q := &searchstore.Query{Filter: test.filter}
		if test.words != "" {
			q.Words = words(t, s, test.words)
		}
		facets, err := s.Facets(t.Context(), q)
		if err != nil || facets.Estimated {
			t.Fatalf("%s: %v, %v", name, facets, err)
		}
		got := facets.List
		slices.SortFunc(got, func(a, b searchstore.Facet) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: counted %v, want %v", name, got, test.want)
		}
	}
	if n, err := s.Count(t.Context()); n != 5 || err != nil {
		t.Errorf("there are %d documents, %v", n, err)
	}
	names, err := s.Namespaces(t.Context(), 10)
	if err != nil || !slices.Equal(names, []string{"default", "other"}) {
		t.Errorf("the namespaces are %v, %v", names, err)
	}
}

// An older document never replaces a newer one, and one that says nothing new is not written (SRC-1).
func TestVersions(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	for _, step := range []struct {
		in   *wigglev1.Instance
		want int
		word string
	}{
		{instance(1, `"first"`, revision(2)), 1, "first"},
		{instance(1, `"older"`, revision(1)), 0, "first"},
		{instance(1, `"first"`, revision(2)), 0, "first"},
		{instance(1, `"second"`, revision(2)), 1, "second"}, // what runs changes within a revision
		{instance(1, `"third"`, ended(completed, 1), revision(3)), 1, "third"},
		{instance(1, `"first"`, revision(2)), 0, "third"},
	} {
		if n := put(t, s, step.in); n != step.want {
			t.Errorf("%s at revision %d: wrote %d, want %d", step.in.GetContext().GetData(), step.in.GetRevision(), n, step.want)
		}
		expect(t, step.word, find(t, s, step.word, searchstore.Filter{}), 1)
		texts, err := s.Texts(t.Context(), words(t, s, step.word), []document.Key{keyOf(1)})
		if err != nil || len(texts[keyOf(1)].Snippets) != 1 {
			t.Errorf("the text of %s is %v, %v", step.word, texts, err)
		}
	}
	if n := put(t, s, instance(1, `"x"`, revision(4)), instance(1, `"y"`, revision(5)), instance(1, `"z"`, revision(4))); n != 1 {
		t.Errorf("of three of one instance %d were written", n)
	}
	expect(t, "the newest of a batch", find(t, s, "y", searchstore.Filter{}), 1)
	if n, err := s.Delete(t.Context(), []searchstore.Head{{Key: keyOf(1), Revision: 4}}); n != 0 || err != nil {
		t.Errorf("a newer one: deleted %d, %v", n, err)
	}
	if n, err := s.Delete(t.Context(), []searchstore.Head{{Key: keyOf(1), Revision: 5}, {Key: keyOf(2)}}); n != 1 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
	expect(t, "deleted", find(t, s, "", searchstore.Filter{}))
	if n, err := s.Delete(t.Context(), nil); n != 0 || err != nil {
		t.Errorf("deleted %d of none, %v", n, err)
	}
}

// Whatever the order and the batches in which the versions of instances come, and however many write at once, in the end
// the index holds the newest of each.
func TestVersionsInAnyOrder(t *testing.T) {
	t.Parallel()
	const instances, versions, writers = 40, 5, 4
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s, _ := open(t)
	var docs []*document.Document
	for n := range instances {
		for v := range versions {
			docs = append(docs, documentOf(t, instance(n, fmt.Sprintf(`"v%dof%d"`, v+1, n), revision(int32(v+1)))))
		}
	}
	docs = append(docs, docs[:len(docs)/2]...) // delivered twice
	random.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	var wg sync.WaitGroup
	for part := range slices.Chunk(docs, len(docs)/writers+1) {
		size := 1 + random.IntN(20)
		wg.Go(func() {
			for batch := range slices.Chunk(part, size) {
				if _, err := s.Upsert(t.Context(), batch); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for n := range instances {
		expect(t, "the newest", find(t, s, fmt.Sprintf("v%dof%d", versions, n), searchstore.Filter{}), n)
	}
	if n, err := s.Count(t.Context()); n != instances || err != nil {
		t.Errorf("there are %d documents, %v", n, err)
	}
}

func TestHeads(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	for n := range 12 {
		put(t, s, instance(n, `1`, of("default", fmt.Sprintf("w%d", n%2)), revision(int32(n+1))))
	}
	list, err := s.Heads(t.Context(), searchstore.Stretch{Shard: 1, After: keyOf(1).ULID, UpTo: keyOf(8).ULID}, 10)
	if err != nil || len(list) != 2 || list[0].Key != keyOf(4) || list[1].Key != keyOf(7) || list[1].Revision != 8 {
		t.Errorf("read %v, %v", list, err)
	}
	list, err = s.Heads(t.Context(), searchstore.Stretch{Shard: 1, Open: true, Namespace: "default", Workflow: "w0"}, 1)
	if err != nil || len(list) != 1 || list[0].Key != keyOf(4) {
		t.Errorf("read %v, %v", list, err)
	}
	if list, err = s.Heads(t.Context(), searchstore.Stretch{Shard: 7, Open: true}, 10); len(list) != 0 || err != nil {
		t.Errorf("read %v, %v", list, err)
	}
}

func TestLanguages(t *testing.T) {
	t.Parallel()
	simple, pool := open(t)
	english := searchstore.New(pool, "english")
	put(t, english, instance(1, `"the boxes were shipped"`))
	expect(t, "english", find(t, english, "shipping box", searchstore.Filter{}), 1)
	expect(t, "simple", find(t, simple, "shipping box", searchstore.Filter{}))
	if n := put(t, simple, instance(1, `"the boxes were shipped"`)); n != 1 {
		t.Error("under another language the same content was not written again")
	}
	expect(t, "simple", find(t, simple, "boxes", searchstore.Filter{}), 1)
	if err := simple.CheckLanguage(t.Context()); err != nil {
		t.Error(err)
	}
	var unknown *searchstore.LanguageError
	if err := searchstore.New(pool, "klingon").CheckLanguage(t.Context()); !errors.As(err, &unknown) {
		t.Errorf("a language that is none: %v", err)
	}
}

// The window of a word that many documents have ends between two times, never within one, and the windows that follow each
// other have every match once.
func TestWindows(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	const total = 2*searchstore.WindowSize + 700
	var batch []*wigglev1.Instance
	for n := range total {
		in := instance(n, `"common"`)
		in.CreatedAt = timestamppb.New(start.Add(time.Duration(n/300) * time.Second)) // 300 are started together
		batch = append(batch, in)
	}
	put(t, s, batch...)
	q := &searchstore.Query{Words: words(t, s, "common"), Filter: searchstore.Filter{Namespace: "default"}}
	seen, windows := map[document.Key]bool{}, 0
	for window := (searchstore.Window{}); ; {
		var after *searchstore.Position
		for {
			hits, w, err := s.Rank(t.Context(), q, window, after, 400)
			if err != nil {
				t.Fatal(err)
			}
			window = w
			for _, h := range hits {
				if seen[h.Key] {
					t.Fatalf("%s comes twice", h.Key)
				}
				seen[h.Key] = true
			}
			if len(hits) < 400 {
				break
			}
			last := hits[399].Position()
			after = &last
		}
		windows++
		if window.Lower.IsZero() {
			break
		}
		window = searchstore.Window{Upper: window.Lower}
	}
	if len(seen) != total || windows != 3 {
		t.Errorf("%d windows have %d of %d", windows, len(seen), total)
	}
}

// More matches of one time than a window has are one window.
func TestWindowOfOneTime(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	var batch []*wigglev1.Instance
	for n := range searchstore.WindowSize + 200 {
		in := instance(n, `"common"`)
		in.CreatedAt = timestamppb.New(start)
		batch = append(batch, in)
	}
	older := instance(9999, `"common"`)
	older.CreatedAt = timestamppb.New(start.Add(-time.Second))
	put(t, s, append(batch, older)...)
	q := &searchstore.Query{Words: words(t, s, "common"), Filter: searchstore.Filter{Namespace: "default"}}
	hits, window, err := s.Rank(t.Context(), q, searchstore.Window{}, nil, 5000)
	if err != nil || len(hits) != len(batch) {
		t.Fatalf("ranked %d of %d: %v", len(hits), len(batch), err)
	}
	hits, window, err = s.Rank(t.Context(), q, searchstore.Window{Upper: window.Lower}, nil, 5000)
	if err != nil || !slices.Equal(numbers(hits), []int{9999}) || !window.Lower.IsZero() {
		t.Errorf("then ranked %v in %+v: %v", numbers(hits), window, err)
	}
}
