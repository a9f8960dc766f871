package wiggle

import (
	"context"
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// The characters that stand around found words in [Hit.Snippets].
const (
	MarkStart = "\uE000"
	MarkStop  = "\uE001"
)

// SearchFilter narrows searches. Its zero value is every instance of the client's
// namespace.
type SearchFilter struct {
	// Workflows. Empty means all.
	Workflows []string
	// States. Empty means all.
	States []State
	// CreatedFrom, and CreatedBefore: started at or after the one, before the
	// other. Zero means no bound.
	CreatedFrom, CreatedBefore time.Time
	// EndedFrom, and EndedBefore, are the same of the end. One that is set leaves
	// out what runs.
	EndedFrom, EndedBefore time.Time
	// Key of the instance. Empty means all.
	Key string
	// Where has conditions on the context, which all have to be met.
	Where []Condition
}

// Condition is a condition on one value of the context, at a JSON Pointer such as
// /customer/city. A value that is not there, or of another kind, does not meet it.
type Condition struct{ proto *wigglev1.AttributeCondition }

// WhereText is the condition that a value is this text.
func WhereText(path, text string) Condition {
	return Condition{&wigglev1.AttributeCondition{
		Path: path, Condition: &wigglev1.AttributeCondition_Equals{Equals: text},
	}}
}

// WhereNumber is the condition that a value is this number.
func WhereNumber(path string, number float64) Condition {
	return Condition{&wigglev1.AttributeCondition{
		Path: path, Condition: &wigglev1.AttributeCondition_EqualsNumber{EqualsNumber: number},
	}}
}

// WhereBool is the condition that a value is this truth value.
func WhereBool(path string, value bool) Condition {
	return Condition{&wigglev1.AttributeCondition{
		Path: path, Condition: &wigglev1.AttributeCondition_EqualsBool{EqualsBool: value},
	}}
}

// WhereRange is the condition that a value is a number that is at least the one
// and at most the other. An end that is nil is open.
func WhereRange(path string, atLeast, atMost *float64) Condition {
	return Condition{&wigglev1.AttributeCondition{
		Path:      path,
		Condition: &wigglev1.AttributeCondition_Range{Range: &wigglev1.NumberRange{AtLeast: atLeast, AtMost: atMost}},
	}}
}

// Hit is an instance that was found, as the search index has it: it may be some
// seconds behind the instance.
type Hit struct {
	// InstanceID names the instance.
	InstanceID string
	// Namespace.
	Namespace string
	// Workflow and its Version.
	Workflow string
	Version  int
	// State.
	State State
	// Key of the instance, if it has one.
	Key string
	// Priority, 0 (lowest) to 9.
	Priority int
	// CreatedAt and EndedAt. EndedAt is zero while it runs.
	CreatedAt, EndedAt time.Time
	// Snippets are parts of the text in which the words were found. Found words
	// stand between MarkStart and MarkStop.
	Snippets []string
	// Rank says how good the match is; comparable within one search.
	Rank float64
	// Failure says why it failed, if it did.
	Failure string
}

// Search iterates over the instances whose context the words are in, the best first,
// reading page by page. The words are as search engines take them: words, "phrases",
// or, -without. Without words it is everything that the filter lets through, newest
// first. No instance comes twice or is left out because others are started or change
// meanwhile. An error ends it; with [AllowPartial] a [*PartialError] comes last, after
// everything that is known.
func (c *Client) Search(ctx context.Context, words string, filter SearchFilter, opts ...ListOption) iter.Seq2[*Hit, error] {
	cfg := listConfigOf(opts)
	return func(yield func(*Hit, error) bool) {
		req := &wigglev1.SearchRequest{
			Query: words, Filter: c.searchFilter(filter), PageSize: cfg.pageSize, MissingShards: cfg.missing,
		}
		missing := missingShards{}
		for {
			res, err := call(ctx, c, "search", callTimeout, c.search.Search, req)
			if err != nil {
				yield(nil, err)
				return
			}
			missing.add("search", res.GetShards())
			for _, h := range res.GetHits() {
				if !yield(hitOf(h), nil) {
					return
				}
			}
			if res.GetNextPageToken() == "" {
				break
			}
			req.PageToken = res.GetNextPageToken()
		}
		if err := missing.err(); err != nil {
			yield(nil, err)
		}
	}
}

// Facets says how many instances a search finds.
type Facets struct {
	// Total in all.
	Total int64
	// ByWorkflow has the workflows with the most, at most 100.
	ByWorkflow map[string]int64
	// ByState has the states that occur.
	ByState map[State]int64
	// Estimated tells that so many match that the counts are extrapolated from a
	// part of the index, to within a few percent.
	Estimated bool
}

// SearchFacets counts what a search finds, by workflow and by state. With
// [AllowPartial] it may return both counts and a [*PartialError].
func (c *Client) SearchFacets(ctx context.Context, words string, filter SearchFilter, opts ...ListOption) (Facets, error) {
	req := &wigglev1.CountFacetsRequest{
		Query: words, Filter: c.searchFilter(filter), MissingShards: listConfigOf(opts).missing,
	}
	res, err := call(ctx, c, "count facets", callTimeout, c.search.CountFacets, req)
	if err != nil {
		return Facets{}, err
	}
	out := Facets{
		Total: res.GetTotal(), ByWorkflow: map[string]int64{}, ByState: map[State]int64{}, Estimated: res.GetEstimated(),
	}
	for _, w := range res.GetByWorkflow() {
		out.ByWorkflow[w.GetWorkflow()] = w.GetCount()
	}
	for _, s := range res.GetByState() {
		out.ByState[State(s.GetState())] = s.GetCount()
	}
	missing := missingShards{}
	missing.add("count facets", res.GetShards())
	return out, missing.err()
}

func (c *Client) searchFilter(f SearchFilter) *wigglev1.SearchFilter {
	out := &wigglev1.SearchFilter{Namespace: c.namespace, Workflows: f.Workflows, Key: f.Key}
	for _, s := range f.States {
		out.States = append(out.States, wigglev1.InstanceState(s))
	}
	for _, bound := range []struct {
		at time.Time
		to **timestamppb.Timestamp
	}{
		{f.CreatedFrom, &out.CreatedFrom},
		{f.CreatedBefore, &out.CreatedBefore},
		{f.EndedFrom, &out.EndedFrom},
		{f.EndedBefore, &out.EndedBefore},
	} {
		if !bound.at.IsZero() {
			*bound.to = timestamppb.New(bound.at)
		}
	}
	for _, condition := range f.Where {
		out.Attributes = append(out.Attributes, condition.proto)
	}
	return out
}

func hitOf(h *wigglev1.SearchHit) *Hit {
	return &Hit{
		InstanceID: h.GetInstanceId(), Namespace: h.GetNamespace(), Workflow: h.GetWorkflow(), Version: int(h.GetVersion()),
		State: State(h.GetState()), Key: h.GetKey(), Priority: int(h.GetPriority()),
		CreatedAt: timeOf(h.GetCreatedAt()), EndedAt: timeOf(h.GetEndedAt()),
		Snippets: h.GetSnippets(), Rank: h.GetRank(), Failure: h.GetFailure(),
	}
}
