package work

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// message is a worker's message with everything in it.
func message() *wigglev1.WorkRequest {
	return &wigglev1.WorkRequest{
		Reports: []*wigglev1.StepReport{
			{TaskId: "tok.s0.1", Lease: "1.a", Outcome: &wigglev1.StepReport_Result{Result: &wigglev1.Payload{Data: []byte("{}")}}},
			{TaskId: "tok.s1.2", Lease: "2.b", Outcome: &wigglev1.StepReport_Gate{Gate: true}},
		},
		Failures: []*wigglev1.FailTaskRequest{{Worker: "w", TaskId: "tok.s0.3", Lease: "3.c", Failure: &wigglev1.Failure{Message: "no"}}},
		Beats:    []*wigglev1.Beat{{TaskId: "tok.s1.4", Lease: "4.d"}},
		Releases: []*wigglev1.TaskLease{{TaskId: "tok.s0.5", Lease: "5.e"}},
		Credits:  3, Revoke: 2, Received: 7, Look: true,
	}
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func read(t testing.TB, b []byte) *wigglev1.WorkRequest {
	t.Helper()
	m := &wigglev1.WorkRequest{}
	if err := proto.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestParseRequest: the splitter reads what generated code reads.
func TestParseRequest(t *testing.T) {
	t.Parallel()
	m := message()
	m.Hello = &wigglev1.WorkHello{Worker: "w"}
	r, err := parseRequest(marshal(t, m))
	if err != nil {
		t.Fatal(err)
	}
	if r.credits != 3 || r.revoke != 2 || r.received != 7 || !r.look {
		t.Errorf("numbers: %+v", r)
	}
	var ids []string
	for _, it := range r.items {
		ids = append(ids, it.taskID+" "+string(it.lease))
	}
	want := []string{"tok.s0.1 1.a", "tok.s1.2 2.b", "tok.s0.3 3.c", "tok.s1.4 4.d", "tok.s0.5 5.e"}
	if !slices.Equal(ids, want) {
		t.Errorf("items %v, want %v", ids, want)
	}
	hello := &wigglev1.WorkHello{}
	if err := proto.Unmarshal(r.hello, hello); err != nil || hello.GetWorker() != "w" {
		t.Errorf("hello %v, %v", hello, err)
	}
}

// TestForward: a message that goes to one shard goes as it came, but for the router's
// numbers; parts of one hold their items and the numbers.
func TestForward(t *testing.T) {
	t.Parallel()
	m := message()
	b := marshal(t, m)
	r, err := parseRequest(b)
	if err != nil {
		t.Fatal(err)
	}
	same := controls{credits: 3, revoke: 2, received: 7, look: true}
	if got := r.forward(same); &got[0] != &b[0] || len(got) != len(b) {
		t.Error("a message that needs no change was changed")
	}
	got := read(t, r.forward(controls{received: 9}))
	want := message()
	want.Credits, want.Revoke, want.Look, want.Received = 0, 0, false, 9
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if read(t, b).GetCredits() != 3 {
		t.Error("forwarding changed what came")
	}
	got = read(t, part([]item{r.items[0], r.items[3]}, controls{credits: 1, look: true}))
	want = &wigglev1.WorkRequest{Reports: m.GetReports()[:1], Beats: m.GetBeats(), Credits: 1, Look: true}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestParseResponse: the router counts tasks and keeps what a shard says to it.
func TestParseResponse(t *testing.T) {
	t.Parallel()
	m := &wigglev1.WorkResponse{
		Tasks: []*wigglev1.Task{{Id: "a"}, {Id: "b"}}, Reported: []*wigglev1.TaskOutcome{{TaskId: "c"}}, Revoked: 4, Draining: true,
	}
	r, err := parseResponse(marshal(t, m))
	if err != nil || r.tasks != 2 || !r.answers || r.revoked != 4 || !r.draining {
		t.Errorf("got %+v, %v", r, err)
	}
	got := &wigglev1.WorkResponse{}
	if err := proto.Unmarshal(r.forward(), got); err != nil {
		t.Fatal(err)
	}
	m.Revoked, m.Draining = 0, false
	if !proto.Equal(got, m) {
		t.Errorf("got %v, want %v", got, m)
	}
}

// TestParseRefuses: what breaks the schema or its rules is refused.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	many := &wigglev1.WorkRequest{}
	for range maxItems + 1 {
		many.Releases = append(many.Releases, &wigglev1.TaskLease{})
	}
	for name, b := range map[string][]byte{
		"cut":             marshal(t, message())[:20],
		"many":            marshal(t, many),
		"credits":         marshal(t, &wigglev1.WorkRequest{Credits: maxCredits + 1}),
		"minus":           marshal(t, &wigglev1.WorkRequest{Credits: -1}),
		"revoke":          marshal(t, &wigglev1.WorkRequest{Revoke: -1}),
		"received":        marshal(t, &wigglev1.WorkRequest{Received: -1}),
		"number as bytes": protowire.AppendBytes(protowire.AppendTag(nil, fieldCredits, protowire.BytesType), []byte("x")),
		"item as number":  appendNumber(nil, fieldReports, int64(1)),
		"hello as number": appendNumber(nil, fieldHello, int64(1)),
		"text": protowire.AppendBytes(protowire.AppendTag(nil, fieldReleases, protowire.BytesType),
			protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte{0xff})),
	} {
		if r, err := parseRequest(b); err == nil {
			t.Errorf("%s is taken as %+v", name, r)
		}
	}
}

// FuzzParseRequest: hostile bytes are refused or read as generated code reads them, and
// what is passed on of them holds the same items.
func FuzzParseRequest(f *testing.F) {
	f.Add(marshal(f, message()))
	f.Add(appendNumber(marshal(f, message()), fieldCredits, int64(9)))
	f.Add([]byte{0x0b, 0x0c})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRequest(b)
		m := &wigglev1.WorkRequest{}
		if proto.Unmarshal(b, m) != nil {
			return // a shard refuses it if we do not
		}
		if err != nil {
			return // out of bounds, or of a wrong type, which generated code keeps as unknown
		}
		if int(m.GetCredits()) != r.credits || int(m.GetRevoke()) != r.revoke || m.GetReceived() != r.received || m.GetLook() != r.look {
			t.Fatalf("numbers: %+v, want %v", r, m)
		}
		var ids []string
		for _, it := range m.GetReports() {
			ids = append(ids, it.GetTaskId(), it.GetLease())
		}
		for _, it := range m.GetFailures() {
			ids = append(ids, it.GetTaskId(), it.GetLease())
		}
		for _, it := range m.GetBeats() {
			ids = append(ids, it.GetTaskId(), it.GetLease())
		}
		for _, it := range m.GetReleases() {
			ids = append(ids, it.GetTaskId(), it.GetLease())
		}
		sorted := slices.Clone(r.items)
		slices.SortStableFunc(sorted, func(a, b item) int { return int(a.field - b.field) })
		var got []string
		for _, it := range sorted {
			got = append(got, it.taskID, string(it.lease))
		}
		if !slices.Equal(got, ids) {
			t.Fatalf("items %q, want %q", got, ids)
		}
		all := read(t, part(r.items, controls{credits: r.credits, revoke: r.revoke, received: r.received, look: r.look}))
		m.Hello = nil
		m.ProtoReflect().SetUnknown(nil)
		if !proto.Equal(all, m) {
			t.Fatalf("passed on %v, want %v", all, m)
		}
	})
}

// FuzzParseResponse: a shard's message is counted as generated code counts it.
func FuzzParseResponse(f *testing.F) {
	f.Add(marshal(f, &wigglev1.WorkResponse{Tasks: []*wigglev1.Task{{Id: "a"}}, Revoked: 4, Draining: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseResponse(b)
		m := &wigglev1.WorkResponse{}
		if err != nil || proto.Unmarshal(b, m) != nil || len(m.ProtoReflect().GetUnknown()) > 0 {
			return
		}
		if len(m.GetTasks()) != r.tasks || int(m.GetRevoked()) != r.revoked || m.GetDraining() != r.draining {
			t.Fatalf("got %+v, want %v", r, m)
		}
	})
}
