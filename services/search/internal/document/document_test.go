package document_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
)

const id = "wfi.s3.01k6zqk3v8r5d1f0m9c2x7y4ab"

func instance(context string) *wigglev1.Instance {
	return &wigglev1.Instance{
		Id: id, Namespace: "default", Workflow: "order", Version: 2, Revision: 1, Priority: 5,
		State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING, Context: &wigglev1.Payload{Data: []byte(context)},
		CreatedAt: timestamppb.New(time.Date(2026, 11, 1, 9, 0, 0, 1234567, time.UTC)),
	}
}

func from(t testing.TB, in *wigglev1.Instance) *document.Document {
	t.Helper()
	d, err := document.From(in)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestFrom(t *testing.T) { // SRC-2
	t.Parallel()
	in := instance(`{"customer":{"name":"Ada Løvelace","city":"Paris","vip":true},"total":12.50,"lines":[{"sku":"A-1","n":2},{"sku":"B/2~"}],
		"none":null,"large":12345678901234567890}`)
	in.State, in.EndedAt = wigglev1.InstanceState_INSTANCE_STATE_FAILED, in.GetCreatedAt()
	in.Failure = &wigglev1.Failure{Type: "CardDeclined", Message: "no money", Node: "authorise", Stack: "secret"}
	d := from(t, in)
	if d.Key.String() != id || d.Shard != 3 || d.Revision != 1 || d.Version != 2 || d.State != 4 || d.Priority != 5 ||
		!d.CreatedAt.Equal(time.Date(2026, 11, 1, 9, 0, 0, 1234000, time.UTC)) || !d.EndedAt.Equal(d.CreatedAt) {
		t.Errorf("got %+v", d)
	}
	if want := "Ada Løvelace\nParis\n12.50\nA-1\n2\nB/2~\n12345678901234567890"; d.Text != want {
		t.Errorf("the text is %q, want %q", d.Text, want)
	}
	if d.Failure != "CardDeclined: no money (authorise)" {
		t.Errorf("the failure is %q", d.Failure)
	}
	for name, lexeme := range map[string]string{
		"workflow": document.WorkflowLexeme("order"), "state": document.StateLexeme(wigglev1.InstanceState_INSTANCE_STATE_FAILED),
		"string": document.StringLexeme("/customer/city", "Paris"), "bool": document.BoolLexeme("/customer/vip", true),
		"number": document.NumberLexeme("/total", 12.5), "element": document.StringLexeme("/lines/0/sku", "A-1"),
		"escaped": document.StringLexeme("/lines/1/sku", "B/2~"), "large": document.NumberLexeme("/large", 12345678901234567890),
	} {
		if !slices.Contains(d.Lexemes, lexeme) {
			t.Errorf("there is no lexeme for the %s", name)
		}
	}
	for name, lexeme := range map[string]string{
		"other value": document.StringLexeme("/customer/city", "paris"), "other path": document.StringLexeme("/city", "Paris"),
		"other kind": document.StringLexeme("/total", "12.5"), "number of a bool": document.NumberLexeme("/customer/vip", 1),
		"other state": document.StateLexeme(wigglev1.InstanceState_INSTANCE_STATE_RUNNING),
	} {
		if slices.Contains(d.Lexemes, lexeme) {
			t.Errorf("there is a lexeme for the %s", name)
		}
	}
	if want := `{"/large":12345678901234567000,"/lines/0/n":2,"/total":12.5}`; d.Numbers != want {
		t.Errorf("the numbers are %s, want %s", d.Numbers, want)
	}
}

// Field names with '/' and '~' are escaped as RFC 6901 has it.
func TestPointer(t *testing.T) {
	t.Parallel()
	d := from(t, instance(`{"a/b":{"c~d":"x","":"y"}}`))
	for _, lexeme := range []string{document.StringLexeme("/a~1b/c~0d", "x"), document.StringLexeme("/a~1b/", "y")} {
		if !slices.Contains(d.Lexemes, lexeme) {
			t.Errorf("a path is missing in %v", d.Lexemes)
		}
	}
}

func TestContextsThatAreNoObjects(t *testing.T) {
	t.Parallel()
	for context, want := range map[string]string{
		`"just text"`: "just text", `7`: "7", `null`: "", ``: "", `[1,["two"]]`: "1\ntwo",
		`{"a":"whole","b":"bro`: "whole", `{"a":"first"} {"b":"second"}`: "first\nsecond", `}`: "", `{"a"`: "", "\x00": "", `{"a":"x",}`: "x",
	} {
		if d := from(t, instance(context)); d.Text != want {
			t.Errorf("%s: the text is %q, want %q", context, d.Text, want)
		}
	}
}

// Encrypted payloads, and all that is not JSON, are never indexed (SRC-2).
func TestOtherContentTypes(t *testing.T) {
	t.Parallel()
	for kind, indexed := range map[string]bool{
		"": true, "application/json": true, "application/json; charset=utf-8": true, "application/vnd.order+json": true,
		"text/plain": false, "application/octet-stream": false, "application/x-encrypted": false, "json": false, ";": false,
	} {
		in := instance(`{"a":"b"}`)
		in.Context.ContentType = kind
		if d := from(t, in); (d.Text != "") != indexed || (len(d.Lexemes) > 2) != indexed {
			t.Errorf("%q: the text is %q", kind, d.Text)
		}
	}
	if d := from(t, &wigglev1.Instance{Id: id}); d.Text != "" || !d.EndedAt.IsZero() {
		t.Errorf("without a context: %+v", d)
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "wfi_old", "x", "tok.s1.01k6zqk3v8r5d1f0m9c2x7y4ab"} {
		if d, err := document.From(&wigglev1.Instance{Id: id}); err == nil {
			t.Errorf("%q made %+v", id, d)
		}
	}
}

// What no database takes does not get into a document, however large or deep the context is.
func TestBounds(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`[`, 100_000)
	wide := `{"a":"` + strings.Repeat("x", document.MaxValueBytes+1) + `","` + strings.Repeat("p", document.MaxPathBytes) + `":"y","n":1e999,"m":1e308`
	for i := range 200 {
		wide += `,"f` + string(rune('a'+i%26)) + strings.Repeat("z", i/26) + `":` + "1"
	}
	wide += "}"
	huge := `["` + strings.Repeat("wörd ", document.MaxTextBytes) + `","after"]`
	d := from(t, instance(deep))
	check(t, d)
	d = from(t, instance(wide))
	check(t, d)
	if n := len(d.Lexemes) - 2; n != document.MaxAttributes {
		t.Errorf("%d values are in conditions, want %d", n, document.MaxAttributes)
	}
	if !strings.Contains(d.Text, "1e999") || !slices.Contains(d.Lexemes, document.NumberLexeme("/m", 1e308)) {
		t.Errorf("numbers are missing in %.300q", d.Text)
	}
	d = from(t, instance(huge))
	check(t, d)
	if len(d.Text) < document.MaxTextBytes-utf8.UTFMax || strings.Contains(d.Text, "after") {
		t.Errorf("the text has %d bytes", len(d.Text))
	}
	in := instance(`{}`)
	in.Failure = &wigglev1.Failure{Message: strings.Repeat("é", document.MaxFailureBytes)}
	check(t, from(t, in))
}

func check(t testing.TB, d *document.Document) {
	t.Helper()
	if len(d.Text) > document.MaxTextBytes || len(d.Failure) > document.MaxFailureBytes || len(d.Lexemes) > document.MaxAttributes+2 {
		t.Errorf("the document is too large: %d bytes, failure %d, %d lexemes", len(d.Text), len(d.Failure), len(d.Lexemes))
	}
	for _, text := range append([]string{d.Text, d.Failure, d.Numbers, d.Namespace, d.Workflow}, d.Lexemes...) {
		if !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\uE000\uE001\uE002") {
			t.Errorf("the document holds %q", text)
		}
	}
	seen := map[string]bool{}
	for _, l := range d.Lexemes {
		if len(l) != 15 || l[0] != '=' || seen[l] {
			t.Errorf("lexeme %q", l)
		}
		seen[l] = true
	}
	var numbers map[string]float64
	if d.Numbers != "" && json.Unmarshal([]byte(d.Numbers), &numbers) != nil {
		t.Errorf("the numbers are %q", d.Numbers)
	}
	for path, n := range numbers {
		if path[0] != '/' || math.IsInf(n, 0) || math.IsNaN(n) || strings.ContainsRune(path, 0) {
			t.Errorf("%q is %v", path, n)
		}
	}
}

// What is indexed decides the hash, under which language too; revisions do not.
func TestContent(t *testing.T) {
	t.Parallel()
	first, again := from(t, instance(`{"a":"b"}`)), instance(`{"a":"b"}`)
	again.Revision = 9
	if first.Content("simple") != from(t, again).Content("simple") {
		t.Error("the same content has two hashes")
	}
	hashes := map[int64]string{first.Content("simple"): "first", first.Content("english"): "language"}
	for _, context := range []string{`{"a":"c"}`, `{"b":"b"}`, `{"a":1}`, `{"a":2}`, `{"a":"1"}`, `{"a":{"b":1}}`, `{"a":true}`, `{}`} {
		h := from(t, instance(context)).Content("simple")
		if other, there := hashes[h]; there {
			t.Errorf("%s and %s have one hash", context, other)
		}
		hashes[h] = context
	}
}

// FuzzFrom: whatever a context holds, the database takes what is made of it.
func FuzzFrom(f *testing.F) {
	for _, seed := range []string{
		`{"a":"\u0000\ud800","\u0000":1}`, `"\ue000\ue001\ue002"`, "\"\xff\xfe\"", `{"a":-0,"b":1e400,"c":5e-324}`, `[[[[`, `{"a":{"a":{"a":1}}}`,
		`{"` + strings.Repeat("/", 300) + `":"x"}`, strings.Repeat(`{"a":`, 1000), `1 2 3`, `{"a":1,"a":2}`, `]`,
	} {
		f.Add([]byte(seed), "")
	}
	f.Fuzz(func(t *testing.T, context []byte, text string) {
		in := instance("")
		in.Context.Data = context
		in.Failure = &wigglev1.Failure{Type: text, Message: string(context), Node: text}
		in.Workflow, in.Namespace = text, text
		d := from(t, in)
		check(t, d)
		if d.Content("simple") != from(t, in).Content("simple") {
			t.Error("the same instance makes two documents")
		}
	})
}
