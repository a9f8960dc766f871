package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// See holds the instance against what must be seen.
func (r *Run) See(want Want) {
	r.Helper()
	in := r.Get()
	if in.GetState() != want.State {
		r.Fatalf("the instance is %s (%v), want %s", in.GetState(), in.GetFailure(), want.State)
	}
	if want.Context != "" {
		r.SeeJSON("the context", in.GetContext(), want.Context)
	}
	f := in.GetFailure()
	if f.GetType() != want.Failure || !strings.Contains(f.GetMessage(), want.Message) || (want.Node != "" && f.GetNode() != want.Node) {
		r.Errorf("the failure is %v, want type %q, node %q, message with %q", f, want.Failure, want.Node, want.Message)
	}
	if want.State != running && (in.GetActiveTokens() != 0 || len(in.GetTokens()) != 0) {
		r.Errorf("ENG-3: the instance is %s and has %d tokens", in.GetState(), in.GetActiveTokens())
	}
	if (in.GetEndedAt() != nil) != (want.State != running) {
		r.Errorf("the instance is %s and ended at %v", in.GetState(), in.GetEndedAt())
	}
	r.seeHistory(want)
}

// ends are the history kinds of the states.
var ends = map[wigglev1.InstanceState]wigglev1.HistoryKind{ //nolint:gochecknoglobals // a constant table
	completed: wigglev1.HistoryKind_HISTORY_KIND_COMPLETED,
	failed:    wigglev1.HistoryKind_HISTORY_KIND_FAILED,
	cancelled: wigglev1.HistoryKind_HISTORY_KIND_CANCELLED,
}

// seeHistory holds the history against what is true of every history (ENG-17): it
// begins with the start and closes with the end, no lease is settled twice, and a
// token's entries are without a gap and in order.
func (r *Run) seeHistory(want Want) {
	r.Helper()
	type lease struct {
		token string
		fence int64
	}
	seen, next, attempts := map[lease]bool{}, map[string]int32{}, map[string]int{}
	entries := r.History(wholeHistory)
	if len(entries) == 0 || entries[0].GetKind() != wigglev1.HistoryKind_HISTORY_KIND_STARTED {
		r.Fatalf("the history does not begin with the start: %v", entries)
	}
	if last := entries[len(entries)-1].GetKind(); want.State != running && last != ends[want.State] {
		r.Errorf("the history of an instance that is %s ends with %s", want.State, last)
	}
	for i, e := range entries {
		if l := (lease{e.GetTokenId(), e.GetFence()}); l.fence > 0 {
			if seen[l] {
				r.Errorf("lease %d of %s is in the history twice", l.fence, l.token)
			}
			seen[l] = true
		}
		if e.GetPosition() != next[e.GetTokenId()] {
			r.Errorf("the history of token %q goes on with position %d, want %d", e.GetTokenId(), e.GetPosition(), next[e.GetTokenId()])
		}
		next[e.GetTokenId()] = e.GetPosition() + 1
		if i > 0 && e.GetRecordedAt().AsTime().Before(entries[i-1].GetRecordedAt().AsTime()) {
			r.Errorf("history entry %d is older than the one before it", i)
		}
		if e.GetStep() != "" {
			attempts[e.GetStep()]++
		}
	}
	if want.Attempts != nil && !reflect.DeepEqual(attempts, want.Attempts) {
		r.Errorf("attempts in the history: %v, want %v", attempts, want.Attempts)
	}
}

// SeeJSON holds a payload against JSON text.
func (r *Run) SeeJSON(what string, p *wigglev1.Payload, want string) {
	r.Helper()
	if p == nil {
		r.Errorf("%s is absent, want %s", what, want)
		return
	}
	if !SameJSON(r.T, p.GetData(), []byte(want)) {
		r.Errorf("%s is %s, want %s", what, p.GetData(), want)
	}
}

// SameJSON compares values; numbers by their text, so that precision counts.
func SameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	read := func(text []byte) any {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%q is not JSON: %v", text, err)
		}
		return v
	}
	return reflect.DeepEqual(read(a), read(b))
}

// Applied sees that an item of a batch was applied.
func (r *Run) Applied(what string, f *wigglev1.Fault) {
	r.Helper()
	if f != nil {
		r.Errorf("%s: %v", what, f)
	}
}

// Lost sees that an item was refused because its lease is lost (WRK-4).
func (r *Run) Lost(what string, f *wigglev1.Fault) {
	r.Helper()
	if f.GetLeaseLost() == nil || faults.Code(f.GetCode()) != faults.CodeAborted {
		r.Errorf("%s: want ABORTED with LeaseLost, got %v", what, f)
	}
}

// Refused sees that a call was refused with a code and a message about something.
func (r *Run) Refused(what string, err error, code faults.Code, about string) *faults.Error {
	r.Helper()
	if err == nil {
		r.Errorf("%s: was not refused", what)
		return nil
	}
	f := faults.FromError(err)
	if f.Code() != code || !strings.Contains(f.Error(), about) {
		r.Errorf("%s: want %s with %q, got %s %q", what, code, about, f.Code(), f.Error())
	}
	return f
}

// RefusedItem is Refused for an item of a batch.
func (r *Run) RefusedItem(what string, f *wigglev1.Fault, code faults.Code, about string) *faults.Error {
	r.Helper()
	if f == nil {
		r.Errorf("%s: was not refused", what)
		return nil
	}
	return r.Refused(what, faults.FromProto(f), code, about)
}

func lost(err error) bool { return errors.Is(err, faults.ErrLeaseLost) }
