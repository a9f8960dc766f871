package offer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// TestStartTemplate: requests that are put together from bytes say what they should.
func TestStartTemplate(t *testing.T) {
	t.Parallel()
	template, err := newStartTemplate("w", []byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(1_700_000_000_123)
	ids := mintAll(at, 3)
	data, err := floodCodec{}.Marshal(template.starts(ids))
	if err != nil {
		t.Fatal(err)
	}
	var req wigglev1.StartInstancesRequest
	if err := (floodCodec{}).Unmarshal(data, &req); err != nil || len(req.GetStarts()) != len(ids) {
		t.Fatalf("%d starts, %v", len(req.GetStarts()), err)
	}
	seen := map[string]bool{}
	for i, start := range req.GetStarts() {
		id, err := ulid.ParseStrict(strings.ToUpper(start.GetUlid()))
		if err != nil || start.GetUlid() != string(ids[i][:]) || start.GetUlid() != strings.ToLower(start.GetUlid()) || !id.Timestamp().Equal(at) {
			t.Errorf("ulid %q: %v", start.GetUlid(), err)
		}
		seen[start.GetUlid()] = true
		want := &wigglev1.StartInstanceRequest{
			Workflow: "w", Ulid: start.GetUlid(), Input: &wigglev1.Payload{ContentType: "application/json", Data: []byte(`{"a":1}`)},
		}
		if !proto.Equal(start, want) {
			t.Errorf("start %d is %v", i, start)
		}
	}
	if len(seen) != len(ids) {
		t.Errorf("ulids are not unique: %v", seen)
	}
}

// TestFloodCounts: what became of starts is told by type, and what is refused otherwise is an error.
func TestFloodCounts(t *testing.T) {
	t.Parallel()
	started := &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Started{Started: &wigglev1.StartInstanceResponse{}}}
	refused := func(err *faults.Error) *wigglev1.StartOutcome {
		return &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Fault{Fault: err.ToProto()}}
	}
	busy, away := faults.Overloaded(time.Second, "busy"), faults.ShardUnavailable(0, 2*time.Second)
	f := Counts{Refused: map[string]int64{}}
	f.note(7, []*wigglev1.StartOutcome{started, started, refused(busy), refused(busy), refused(away), refused(faults.InvalidArgument("no")), started}, nil)
	whole := connect.NewError(connect.CodeResourceExhausted, errors.New("busy"))
	detail, err := connect.NewErrorDetail(&wigglev1.Fault{Code: int32(faults.CodeResourceExhausted), RetryAfter: durationpb.New(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	whole.AddDetail(detail)
	f.note(10, nil, whole)
	f.note(5, nil, connect.NewError(connect.CodeUnavailable, errors.New("connection reset")))
	if f.Offered != 22 || f.Accepted != 3 || f.Refused["resource_exhausted"] != 12 || f.Refused["unavailable"] != 1 || f.Untyped != 6 {
		t.Errorf("%+v", f)
	}
	if len(f.Failures) != 2 || len(f.Pauses) != 3 {
		t.Errorf("%q, pauses %v", f.Failures, f.Pauses)
	}
}
