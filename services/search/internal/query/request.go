package query

import (
	"context"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
)

// actionRead is the action of searches, as their protos have it.
const actionRead = "instance.read"

// namespaceOf is the namespace whose documents a search is about.
func namespaceOf(f *wigglev1.SearchFilter) string {
	if f.GetNamespace() == "" {
		return "default"
	}
	return f.GetNamespace()
}

// filterOf reads the filter of a request. It is the one place that decides what a caller gets to see.
func filterOf(ctx context.Context, f *wigglev1.SearchFilter) (searchstore.Filter, error) {
	out := searchstore.Filter{Namespace: namespaceOf(f), Workflows: f.GetWorkflows(), States: f.GetStates()}
	out.Only = identity.Within(ctx, actionRead, out.Namespace)
	for _, text := range append([]string{out.Namespace}, out.Workflows...) {
		if strings.ContainsRune(text, 0) {
			return out, faults.InvalidArgument("the filter's %q holds a NUL character, which no name does", text)
		}
	}
	var err error
	for _, bound := range []struct {
		name string
		from *timestamppb.Timestamp
		to   *time.Time
	}{
		{"created_from", f.GetCreatedFrom(), &out.CreatedFrom},
		{"created_before", f.GetCreatedBefore(), &out.CreatedBefore},
		{"ended_from", f.GetEndedFrom(), &out.EndedFrom},
		{"ended_before", f.GetEndedBefore(), &out.EndedBefore},
	} {
		if bound.from == nil {
			continue
		}
		if err := bound.from.CheckValid(); err != nil {
			return out, faults.InvalidArgument("%s: %v", bound.name, err)
		}
		*bound.to = bound.from.AsTime()
	}
	if f.GetKey() != "" {
		out.Lexemes = append(out.Lexemes, document.KeyLexeme(f.GetKey()))
	}
	for _, c := range f.GetAttributes() {
		if err = attribute(&out, c); err != nil {
			return out, err
		}
	}
	return out, nil
}

// attribute adds a condition on the context.
func attribute(out *searchstore.Filter, c *wigglev1.AttributeCondition) error {
	path := c.GetPath()
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return faults.InvalidArgument("%q is no path into a context: want a JSON Pointer, such as /customer/city", path)
	}
	switch condition := c.GetCondition().(type) {
	case *wigglev1.AttributeCondition_Equals:
		if len(condition.Equals) > document.MaxValueBytes {
			return faults.InvalidArgument("the value for %s is %d bytes long; texts can be compared up to %d", path, len(condition.Equals),
				document.MaxValueBytes)
		}
		out.Lexemes = append(out.Lexemes, document.StringLexeme(path, condition.Equals))
	case *wigglev1.AttributeCondition_EqualsNumber:
		out.Lexemes = append(out.Lexemes, document.NumberLexeme(path, condition.EqualsNumber))
	case *wigglev1.AttributeCondition_EqualsBool:
		out.Lexemes = append(out.Lexemes, document.BoolLexeme(path, condition.EqualsBool))
	case *wigglev1.AttributeCondition_Range:
		r := searchstore.Range{Path: path, AtLeast: condition.Range.AtLeast, AtMost: condition.Range.AtMost}
		for _, end := range []*float64{r.AtLeast, r.AtMost} {
			if end != nil && math.IsNaN(*end) {
				return faults.InvalidArgument("the range for %s has an end that is no number", path)
			}
		}
		out.Ranges = append(out.Ranges, r)
	default:
		return faults.InvalidArgument("the condition on %s does not say what the value has to be", path)
	}
	return nil
}
