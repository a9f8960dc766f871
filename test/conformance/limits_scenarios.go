package conformance

import (
	"bytes"
	"strings"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// payloadBytes is the limit of WF-8 on a payload.
const payloadBytes = 2 << 20

func limits() []Scenario {
	return []Scenario{
		{Name: "an input over the limit is refused and nothing is created", Covers: "WF-8 ENG-25", Flow: chain("limit", "a"), Script: inputOverLimit},
		{Name: "a result over the limit is refused and the task stays leased", Covers: "WF-8 ENG-25 WRK-4", Flow: chain("limit", "a"), Script: resultOverLimit},
		{Name: "progress over the limit is refused", Covers: "WF-8 ENG-25", Flow: tried(quick(0)), Script: progressOverLimit},
		{Name: "payloads up to the limit pass", Covers: "WF-8 WF-9", Flow: chain("limit", "a"), Script: atLimit},
		{Name: "history cuts what is long and keeps what is short", Covers: "ENG-17", Flow: chain("cut", "a", "b"), Script: cutHistory},
	}
}

func sized(n int) *wigglev1.Payload {
	return &wigglev1.Payload{ContentType: "application/json", Data: []byte(`"` + strings.Repeat("x", n-2) + `"`)}
}

// overLimit holds a fault against the payload limit.
func (r *Run) overLimit(what string, f *wigglev1.Fault) {
	r.Helper()
	r.RefusedItem(what, f, faults.CodeResourceExhausted, "WIGGLE_LIMIT_PAYLOAD_BYTES")
	l := f.GetLimitExceeded()
	if l.GetSetting() != "WIGGLE_LIMIT_PAYLOAD_BYTES" || l.GetMaximum() != payloadBytes || l.GetActual() != payloadBytes+1 {
		r.Errorf("%s: the limit is told as %v", what, l)
	}
}

func inputOverLimit(r *Run) {
	id := newULID()
	tooLarge := func(q *wigglev1.StartInstanceRequest) { q.Ulid, q.Input = id, sized(payloadBytes+1) }
	_, err := r.TryStart("", tooLarge)
	if err == nil {
		r.Fatalf("an input over the limit was taken")
	}
	r.overLimit("input", faults.FromError(err).ToProto())
	if n := r.Count(&wigglev1.InstanceFilter{Workflow: r.Workflow}).GetTotal(); n != 0 {
		r.Errorf("%d instances were created", n)
	}
	res, err := r.TryStart(`1`, func(q *wigglev1.StartInstanceRequest) { q.Ulid = id })
	if err != nil || !res.GetCreated() {
		r.Errorf("the same ulid with a smaller input: %v, %v", res, err)
	}
}

func resultOverLimit(r *Run) {
	r.Start(`1`)
	t := r.Task("a")
	r.overLimit("result", r.Report(t, func(*wigglev1.Task) Reply { return resultOf(sized(payloadBytes + 1)) }))
	if got := r.Token("a"); got.GetState() != wigglev1.TokenState_TOKEN_STATE_LEASED || got.GetAttempt() != 1 {
		r.Errorf("the refused report changed the token: %v", got)
	}
	r.Applied("a smaller result", r.Report(t, Result(`2`)))
	r.See(Want{State: completed, Context: `2`, Attempts: map[string]int{"a": 1}})
}

func progressOverLimit(r *Run) {
	r.Start(`1`)
	t := r.Task("try")
	r.Applied("progress", r.Beat(t, aLease, payload(`"kept"`)).GetFault())
	r.overLimit("progress", r.Beat(t, aLease, sized(payloadBytes+1)).GetFault())
	if _, err := r.FailTask(t, Fail("busy", AtOnce)); err != nil {
		r.Fatalf("fail: %v", err)
	}
	r.SeeJSON("progress", r.Task("try").GetProgress(), `"kept"`)
	r.MustCancel("seen")
}

func atLimit(r *Run) {
	whole := sized(payloadBytes)
	r.Start("", func(q *wigglev1.StartInstanceRequest) { q.Input = whole })
	a := r.Task("a")
	if !bytes.Equal(a.GetContext().GetData(), whole.GetData()) {
		r.Errorf("the input came as %d bytes", len(a.GetContext().GetData()))
	}
	r.Applied("a", r.Report(a, func(*wigglev1.Task) Reply { return resultOf(whole) }))
	if got := r.Get().GetContext().GetData(); !bytes.Equal(got, whole.GetData()) {
		r.Errorf("the result has %d bytes, want %d", len(got), len(whole.GetData()))
	}
}

func cutHistory(r *Run) {
	const kept = 4 << 10
	long := `"` + strings.Repeat("é", kept) + `"`
	r.Start(`1`)
	r.Work(map[string]Answer{"a": Result(long), "b": Result(`{"short":1}`)})
	r.See(Want{State: completed, Context: `{"short":1}`, Attempts: map[string]int{"a": 1, "b": 1}})
	first, second := r.Steps("a")[0], r.Steps("b")[0]
	data := string(first.GetOutput().GetData())
	if !first.GetOutputTruncated() || len(data) > kept || len(data) < kept-1 || !strings.HasPrefix(long, data) || strings.Contains(data, "\uFFFD") {
		r.Errorf("the long output is kept as %d bytes, cut: %t", len(data), first.GetOutputTruncated())
	}
	if second.GetOutputTruncated() || string(second.GetOutput().GetData()) != `{"short":1}` {
		r.Errorf("the short output is kept as %v", second)
	}
}

func payloads() []Scenario {
	return []Scenario{
		{Name: "bytes of another content type come back exactly", Covers: "WF-9", Flow: pair("bytes"), Script: otherBytes},
		{Name: "a for_each over bytes fails clearly", Covers: "WF-9 ENG-9", Flow: each("bytes"), Script: func(r *Run) {
			r.Start("", func(q *wigglev1.StartInstanceRequest) { q.Input = cbor() })
			r.Work(nil)
			r.See(Want{State: failed, Failure: "wiggle.NotACollection", Message: "application/cbor, not JSON", Node: "gather.each"})
		}},
		{Name: "a for_each over what is not JSON, called JSON, fails clearly", Covers: "WF-9 ENG-9", Flow: each("broken"), Script: func(r *Run) {
			r.Start("", func(q *wigglev1.StartInstanceRequest) { q.Input = payload(`{"items":[1,`) })
			r.Work(nil)
			r.See(Want{State: failed, Failure: "wiggle.NotACollection", Message: "not valid JSON", Node: "gather.each"})
		}},
		{Name: "an empty payload is not none", Covers: "WF-9", Flow: chain("empty", "a"), Script: emptyPayload},
	}
}

func cbor() *wigglev1.Payload {
	data := make([]byte, 256)
	for i := range data {
		data[i] = byte(i)
	}
	return &wigglev1.Payload{ContentType: "application/cbor", Data: data}
}

func (r *Run) sameBytes(what string, got, want *wigglev1.Payload) {
	r.Helper()
	if got == nil || got.GetContentType() != want.GetContentType() || !bytes.Equal(got.GetData(), want.GetData()) {
		r.Errorf("%s is %v, want %v", what, got, want)
	}
}

func otherBytes(r *Run) {
	in, out := cbor(), &wigglev1.Payload{ContentType: "text/plain; charset=utf-8", Data: []byte("\xff\x00 not \"JSON\"")}
	r.Start("", func(q *wigglev1.StartInstanceRequest) { q.Input = in })
	left, right := r.Task("l"), r.Task("r")
	r.sameBytes("the branch's context", left.GetContext(), in)
	r.sameBytes("the branch's base", left.GetBaseContext(), in)
	r.Applied("left", r.Report(left, func(*wigglev1.Task) Reply { return resultOf(out) }))
	r.Applied("right", r.Report(right, Unchanged))
	merge := r.Task("merge")
	r.sameBytes("the combine's context", merge.GetContext(), in)
	r.sameBytes("left's result", merge.GetResults()[0].GetResult(), out)
	r.sameBytes("right's result", merge.GetResults()[1].GetResult(), in)
	r.Applied("progress", r.Beat(merge, aLease, out).GetFault())
	r.Applied("release", r.Release(merge))
	merge = r.Task("merge")
	r.sameBytes("progress", merge.GetProgress(), out)
	r.Applied("merge", r.Report(merge, func(*wigglev1.Task) Reply { return resultOf(out) }))
	r.sameBytes("the result", r.Get().GetContext(), out)
	r.sameBytes("the history's output", r.Steps("merge")[0].GetOutput(), out)
	r.See(Want{State: completed, Attempts: map[string]int{"l": 1, "r": 1, "merge": 1}})
}

func emptyPayload(r *Run) {
	empty := &wigglev1.Payload{ContentType: "text/plain"}
	r.Start("", func(q *wigglev1.StartInstanceRequest) { q.Input = empty })
	a := r.Task("a")
	r.sameBytes("an empty input", a.GetContext(), empty)
	r.Applied("a", r.Report(a, func(*wigglev1.Task) Reply { return resultOf(&wigglev1.Payload{ContentType: "text/html"}) }))
	r.sameBytes("an empty result", r.Get().GetContext(), &wigglev1.Payload{ContentType: "text/html"})
	r.See(Want{State: completed, Attempts: map[string]int{"a": 1}})
	r.Start("")
	a = r.Task("a")
	r.sameBytes("no input", a.GetContext(), payload(`null`))
	r.Applied("a", r.Report(a, Unchanged))
	r.sameBytes("no input", r.Get().GetContext(), payload(`null`))
}
