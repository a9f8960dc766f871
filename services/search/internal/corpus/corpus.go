// Package corpus makes documents as a busy cluster would have them, and searches as its operators would make them, to measure
// what a search costs on a million of them. The same seed makes the same documents.
//
// Words are as frequent as in any text (by Zipf's law): some are in every second document, most in a few. Customers, cities,
// products and workflows are as uneven. Nine of ten instances have completed; of the others most run.
package corpus

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
)

const (
	vocabulary  = 30_000
	names       = 4000
	cities      = 400
	products    = 3000
	workflows   = 12
	noteWords   = 25
	everyMillis = 250 // between two starts
	skew        = 1.07
)

// Corpus makes documents.
type Corpus struct {
	seed uint64
	from time.Time
}

// New makes a corpus whose first instance was started at a time.
func New(seed uint64, from time.Time) *Corpus { return &Corpus{seed: seed, from: from} }

// zipf draws from so many, the first most often.
func zipf(r *rand.Rand, most uint64) int {
	return int(rand.NewZipf(r, skew, 4, most-1).Uint64()) //nolint:gosec // small
}

const syllables = "ba be bi bo bu da de di do du fa fe fi ka ke ki ko ku la le li lo lu ma me mi mo mu na ne ni no nu " +
	"pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo za ze zo"

// word is the n-th word of a kind.
func word(kind string, n int) string {
	parts := strings.Fields(syllables)
	b := []byte(kind)
	for n++; n > 0; n /= len(parts) {
		b = append(b, parts[n%len(parts)]...)
	}
	return string(b)
}

func text(r *rand.Rand, words int) string {
	list := make([]string, words)
	for i := range list {
		list[i] = word("", zipf(r, vocabulary))
	}
	return strings.Join(list, " ")
}

func name(n int) string { return word("Mc", n%97) + " " + word("O", n) }

func city(n int) string { return word("Port", n) }

func workflow(n int) string {
	return [workflows]string{
		"order-fulfilment", "payment", "refund", "shipment", "invoice", "onboarding", "subscription", "return", "restock", "review",
		"export", "audit",
	}[n%workflows]
}

// Document makes the i-th document.
func (c *Corpus) Document(i int) *document.Document {
	r := rand.New(rand.NewPCG(c.seed, uint64(i))) //nolint:gosec // not for secrets
	created := c.from.Add(time.Duration(i) * everyMillis * time.Millisecond)
	key := document.Key{Shard: i % 4}
	binary.BigEndian.PutUint64(key.ULID[:8], uint64(created.UnixMilli())<<16)
	binary.BigEndian.PutUint64(key.ULID[8:], r.Uint64())
	in := &wigglev1.Instance{
		Id: key.String(), Namespace: "default", Workflow: workflow(zipf(r, workflows)), Version: 1 + r.Int32N(3), Revision: 2, Priority: 5,
		State: wigglev1.InstanceState_INSTANCE_STATE_COMPLETED, CreatedAt: timestamppb.New(created),
		EndedAt: timestamppb.New(created.Add(time.Duration(r.ExpFloat64() * float64(time.Minute)))),
	}
	switch draw := r.IntN(100); {
	case draw < 6:
		in.State, in.EndedAt, in.Revision = wigglev1.InstanceState_INSTANCE_STATE_RUNNING, nil, 1
	case draw < 10:
		in.State = wigglev1.InstanceState_INSTANCE_STATE_FAILED
		in.Failure = &wigglev1.Failure{Type: word("Err", zipf(r, 50)), Message: text(r, 8), Node: "pay"}
	}
	if r.IntN(10) == 0 {
		in.Namespace = "other"
	}
	in.Context = &wigglev1.Payload{Data: fmt.Appendf(nil,
		`{"order":"ORD-%07d","customer":{"name":%q,"city":%q,"vip":%t},"lines":[{"sku":"SKU-%d","product":%q,"n":%d},`+
			`{"sku":"SKU-%d","product":%q,"n":%d}],"total":%.2f,"note":%q}`,
		i, name(zipf(r, names)), city(zipf(r, cities)), r.IntN(20) == 0, r.IntN(products), text(r, 3), 1+r.IntN(9),
		r.IntN(products), text(r, 3), 1+r.IntN(9), r.ExpFloat64()*100, text(r, noteWords))}
	d, err := document.From(in)
	if err != nil {
		panic(err) // of an id that is made above
	}
	return d
}

// Search is a search that an operator might make.
type Search struct {
	// Kind says what it is like.
	Kind  string
	Query string
	// Filter narrows it.
	Filter *wigglev1.SearchFilter
}

// Searches makes searches over the first n documents, of each kind as many. Words are drawn as they are in documents.
func (c *Corpus) Searches(n, each int) []Search {
	r := rand.New(rand.NewPCG(c.seed, 1<<63)) //nolint:gosec // not for secrets
	end := c.from.Add(time.Duration(n) * everyMillis * time.Millisecond)
	completed := []wigglev1.InstanceState{wigglev1.InstanceState_INSTANCE_STATE_COMPLETED}
	failed := []wigglev1.InstanceState{wigglev1.InstanceState_INSTANCE_STATE_FAILED}
	least := 100.0
	var list []Search
	for range each {
		flow := []string{workflow(zipf(r, workflows))}
		atCity := []*wigglev1.AttributeCondition{{
			Path: "/customer/city", Condition: &wigglev1.AttributeCondition_Equals{Equals: city(zipf(r, cities))},
		}}
		lastDay := timestamppb.New(end.Add(-24 * time.Hour))
		list = append(list, []Search{
			{"order number", fmt.Sprintf("ORD-%07d", r.IntN(n)), nil},
			{"customer", name(zipf(r, names)), nil},
			{"customer, failed", name(zipf(r, names)), &wigglev1.SearchFilter{States: failed}},
			{"word, workflow", text(r, 1), &wigglev1.SearchFilter{Workflows: flow}},
			{"two words, completed", text(r, 2), &wigglev1.SearchFilter{States: completed}},
			{"three words, city", text(r, 3), &wigglev1.SearchFilter{Attributes: atCity}},
			{"most frequent word", word("", r.IntN(5)), nil},
			{"most frequent word, workflow", word("", r.IntN(5)), &wigglev1.SearchFilter{Workflows: flow, States: completed}},
			{"word, last day", text(r, 1), &wigglev1.SearchFilter{CreatedFrom: lastDay}},
			{"phrase", `"` + text(r, 2) + `"`, nil},
			{"or, without", text(r, 1) + " or " + text(r, 1) + " -" + text(r, 1), nil},
			{"word, large totals", text(r, 1), &wigglev1.SearchFilter{Attributes: []*wigglev1.AttributeCondition{{
				Path: "/total", Condition: &wigglev1.AttributeCondition_Range{Range: &wigglev1.NumberRange{AtLeast: &least}},
			}}}},
			{"city", "", &wigglev1.SearchFilter{Attributes: atCity}},
			{"newest", "", nil},
			{"newest, failed", "", &wigglev1.SearchFilter{Workflows: flow, States: failed}},
		}...)
	}
	return list
}
