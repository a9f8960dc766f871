package steps

import (
	"bytes"
	"encoding/json"
	"sync"
	"testing"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func TestPayload(t *testing.T) {
	t.Parallel()
	for _, size := range []int{MinPayloadBytes, 200, 1 << 20} {
		p := Payload(size)
		if len(p.Data) != size || !json.Valid(p.Data) {
			t.Fatalf("%d bytes, valid %v, want %d", len(p.Data), json.Valid(p.Data), size)
		}
		for range 12 {
			next := bump(p)
			if len(next.Data) != size || string(next.Data) == string(p.Data) || !json.Valid(next.Data) {
				t.Fatalf("from %.40s to %.40s", p.Data, next.Data)
			}
			p = next
		}
	}
	if p := Elements(3, 40); !json.Valid(p.Data) {
		t.Errorf("%s", p.Data)
	}
	if p := TimerContext(time.Unix(0, 0), 200); len(p.Data) != 200 || !json.Valid(p.Data) {
		t.Errorf("%d bytes: %s", len(p.Data), p.Data)
	}
	if p := (wiggle.Payload{Data: []byte(`{"x":1}`)}); string(bump(p).Data) != `{"x":1}` {
		t.Error("what is not the bench's has changed")
	}
}

func TestAcknowledged(t *testing.T) {
	t.Parallel()
	a := newAcknowledged()
	a.expect("t2")
	a.expect("t3")
	answer := &wigglev1.ReportStepsResponse{Outcomes: []*wigglev1.TaskOutcome{
		{TaskId: "t1"}, {TaskId: "t2"}, {TaskId: "t3", Fault: &wigglev1.Fault{}},
	}}
	a.see(answer)
	if a.now != (Totals{2, 1}) {
		t.Errorf("%+v", a.now)
	}
	a.see(&wigglev1.WorkResponse{Reported: []*wigglev1.TaskOutcome{{TaskId: "t3"}}})
	a.see(&wigglev1.HeartbeatResponse{})
	a.see(&wigglev1.ReleaseTasksResponse{Outcomes: []*wigglev1.TaskOutcome{{TaskId: "t4"}}})
	if a.now != (Totals{3, 2}) || len(a.last) != 0 {
		t.Errorf("%+v, %d still expected", a.now, len(a.last))
	}
}

func TestWorkersAreCountedOnce(t *testing.T) {
	t.Parallel()
	tally := NewTally(2)
	var following sync.WaitGroup
	for i, records := range [][]Totals{{{}, {8, 1}, {24, 3}}, {{}, {16, 2}}} {
		var pipe bytes.Buffer
		for _, r := range records {
			if err := r.write(&pipe); err != nil {
				t.Fatal(err)
			}
		}
		following.Go(func() { tally.Follow(i, &pipe, nil) })
	}
	following.Wait()
	if got := tally.Sum(); got != (Totals{40, 5}) {
		t.Errorf("%+v", got)
	}
}
