package searchstore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
)

// FuzzUpsert: the database takes the document of every instance.
func FuzzUpsert(f *testing.F) {
	s, _ := open(f)
	// Texts whose words are in a tsvector in several forms, at the bound of a text.
	var hyphens, urls, letters, tags strings.Builder
	for i := range document.MaxTextBytes / 8 {
		fmt.Fprintf(&hyphens, "a%x-b%x-c%x ", i, i, i)
		fmt.Fprintf(&urls, "x%x.yy/p%x?q=%x ", i, i, i)
		fmt.Fprintf(&letters, "%x ", i)
		fmt.Fprintf(&tags, "<a%x> &b%x; ", i, i)
	}
	for _, text := range []string{
		hyphens.String(), urls.String(), letters.String(), tags.String(), strings.Repeat("a-", document.MaxTextBytes),
		strings.Repeat("x", document.MaxTextBytes), strings.Repeat("the same ", document.MaxTextBytes/9), "'quoted' \\ \"text\" \x00 \u2028 \ue000",
	} {
		f.Add([]byte(`{"a":"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\x00", `\u0000`).Replace(text)+`"}`), text)
	}
	for _, context := range []string{`{"\u0000":1,"a":1e308,"b":5e-324,"c":-0,"d":1e400}`, `{"\u2028":1,"\\":2,"\"":3,"<&>":4}`, "\"\xff\"", `"\ud800"`} {
		f.Add([]byte(context), "")
	}
	f.Fuzz(func(t *testing.T, context []byte, text string) {
		in := instance(1, "")
		in.Context.Data = context
		in.Failure = &wigglev1.Failure{Type: text, Message: text}
		in.Workflow = strings.ToValidUTF8(text, "?")
		in.Workflow = in.GetWorkflow()[:min(len(in.GetWorkflow()), 100)]
		d := documentOf(t, in)
		if _, err := s.Delete(t.Context(), []searchstore.Head{{Key: d.Key, Revision: d.Revision}}); err != nil {
			t.Fatal(postgres.Detail(err))
		}
		if n, err := s.Upsert(t.Context(), []*document.Document{d}); n != 1 || err != nil {
			t.Fatalf("wrote %d: %s", n, postgres.Detail(err))
		}
	})
}
