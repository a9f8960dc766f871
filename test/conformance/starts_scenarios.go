package conformance

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// WithULID mints the start's id.
func WithULID(id string) StartOption {
	return func(q *wigglev1.StartInstanceRequest) { q.Ulid = id }
}

func starts() []Scenario {
	return []Scenario{
		{Name: "the same start sent twice is applied once", Covers: "SHD-4 ENG-23", Flow: chain("again", "a"), Script: startedTwice},
		{Name: "the same start sent many times at once is applied once", Covers: "SHD-4 ENG-2", Flow: chain("at-once", "a"), Script: startedAtOnce},
		{Name: "a ulid of another workflow's instance is refused", Covers: "SHD-4", Flow: chain("first", "a"), Script: otherWorkflow},
		{Name: "an unknown workflow is not found", Covers: "ENG-25", Script: func(r *Run) {
			r.Workflow = unique("unknown")
			_, err := r.TryStart(`1`)
			r.Refused("start", err, faults.CodeNotFound, r.Workflow)
		}},
		{Name: "an unknown version is not found", Covers: "ENG-25 WF-12", Flow: chain("version", "a"), Script: func(r *Run) {
			_, err := r.TryStart(`1`, OfVersion(7))
			r.Refused("start", err, faults.CodeNotFound, "version 7")
		}},
		{Name: "a ulid that is none is refused", Covers: "SHD-3 SHD-4", Flow: chain("malformed", "a"), Script: malformedULIDs},
		{Name: "a ulid too far ahead is refused", Covers: "SHD-4", Flow: chain("ahead", "a"), Script: aheadULID},
		{Name: "an old ulid is taken", Covers: "SHD-4", Flow: chain("old", "a"), Script: func(r *Run) {
			id := ulidAt(time.Now().Add(-1000 * time.Hour))
			r.Start(`1`, WithULID(id))
			if !strings.HasSuffix(r.ID, "."+id) {
				r.Errorf("the instance of ulid %s is %s", id, r.ID)
			}
			r.Work(nil)
			r.See(Want{State: completed, Context: `1`})
		}},
		{Name: "a batch of starts answers each on its own", Covers: "ENG-25 WRK-10", Flow: chain("batch", "a"), Script: batchStart},
		{Name: "a start that makes no sense is refused", Covers: "ENG-25", Flow: chain("nonsense", "a"), Script: nonsense},
	}
}

func startedTwice(r *Run) {
	id := newULID()
	first, err := r.TryStart(`1`, WithULID(id))
	if err != nil || !first.GetCreated() || first.GetVersion() != 1 {
		r.Fatalf("start: %v, %v", first, err)
	}
	r.ID = first.GetInstanceId()
	again := func(when string) {
		res, err := r.TryStart(`2`, WithULID(id))
		if err != nil || res.GetCreated() || res.GetInstanceId() != r.ID || res.GetVersion() != 1 {
			r.Errorf("the same start %s is answered with %v, %v", when, res, err)
		}
	}
	again("at once")
	a := r.Task("a")
	again("while it runs")
	r.Applied("a", r.Report(a, Wrap("a")))
	again("after the end")
	r.None()
	if n := r.Count(&wigglev1.InstanceFilter{Workflow: r.Workflow}).GetTotal(); n != 1 {
		r.Errorf("there are %d instances", n)
	}
	r.See(Want{State: completed, Context: `{"a":1}`, Attempts: map[string]int{"a": 1}})
}

func startedAtOnce(r *Run) {
	id := newULID()
	var wg sync.WaitGroup
	var created atomic.Int32
	for range 8 {
		wg.Go(func() {
			res, err := r.TryStart(`1`, WithULID(id))
			if err != nil {
				r.Errorf("start: %v", err)
			}
			if res.GetCreated() {
				created.Add(1)
			}
		})
	}
	wg.Wait()
	if created.Load() != 1 {
		r.Errorf("%d of 8 starts were told that they created it", created.Load())
	}
	r.Start(`1`, WithULID(id))
	r.Work(nil)
	r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"a": 1}})
}

func otherWorkflow(r *Run) {
	id := newULID()
	r.Start(`1`, WithULID(id))
	first := r.Workflow
	r.Workflow = ""
	r.RegisterFlow(chain("second", "a"))
	_, err := r.TryStart(`1`, WithULID(id))
	r.Refused("start of another workflow", err, faults.CodeAlreadyExists, id)
	r.Workflow = first
	r.Work(nil)
	r.See(Want{State: completed, Context: `1`})
}

func malformedULIDs(r *Run) {
	good := newULID()
	for _, bad := range []string{"x", good[1:], strings.ToUpper(good[:1]) + strings.ToUpper(good[1:]), "8" + good[1:], good[:25] + "u", good[:25] + "-"} {
		_, err := r.TryStart(`1`, WithULID(bad))
		r.Refused("ulid "+bad, err, faults.CodeInvalidArgument, "ulid")
	}
	if n := r.Count(&wigglev1.InstanceFilter{Workflow: r.Workflow}).GetTotal(); n != 0 {
		r.Errorf("%d instances were created", n)
	}
}

func aheadULID(r *Run) {
	_, err := r.TryStart(`1`, WithULID(ulidAt(time.Now().Add(time.Hour))))
	r.Refused("an hour ahead", err, faults.CodeInvalidArgument, "ahead")
	if _, err := r.TryStart(`1`, WithULID(ulidAt(time.Now().Add(time.Minute)))); err != nil {
		r.Errorf("a minute ahead: %v", err)
	}
}

func batchStart(r *Run) {
	one := func(change ...StartOption) *wigglev1.StartInstanceRequest {
		q := &wigglev1.StartInstanceRequest{Workflow: r.Workflow, Input: payload(`1`)}
		for _, c := range change {
			c(q)
		}
		return q
	}
	id := newULID()
	unknown := one()
	unknown.Workflow = unique("unknown")
	res, err := r.Instances.StartInstances(r.ctx, &wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{
		one(), unknown, one(WithULID("bad")), one(WithULID(id)), one(OfVersion(9)), one(WithULID(id)), one(),
	}})
	if err != nil || len(res.GetOutcomes()) != 7 {
		r.Fatalf("start: %v, %v", res, err)
	}
	o := res.GetOutcomes()
	r.RefusedItem("unknown workflow", o[1].GetFault(), faults.CodeNotFound, unknown.GetWorkflow())
	r.RefusedItem("bad ulid", o[2].GetFault(), faults.CodeInvalidArgument, "bad")
	r.RefusedItem("unknown version", o[4].GetFault(), faults.CodeNotFound, "version 9")
	ids := map[string]bool{}
	for _, i := range []int{0, 3, 5, 6} {
		started := o[i].GetStarted()
		if started.GetCreated() == (i == 5) {
			r.Errorf("start %d is answered with %v", i, o[i])
		}
		ids[started.GetInstanceId()] = true
	}
	if o[3].GetStarted().GetInstanceId() != o[5].GetStarted().GetInstanceId() || len(ids) != 3 {
		r.Errorf("the started instances are %v", ids)
	}
	for r.ID = range ids {
		r.Work(nil)
		r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"a": 1}})
	}
}

func nonsense(r *Run) {
	for what, change := range map[string]StartOption{
		"delay":    func(q *wigglev1.StartInstanceRequest) { q.Delay = durationpb.New(-time.Second) },
		"priority": func(q *wigglev1.StartInstanceRequest) { p := int32(10); q.Priority = &p },
		"workflow": func(q *wigglev1.StartInstanceRequest) { q.Workflow = "" },
		"version":  func(q *wigglev1.StartInstanceRequest) { q.Version = -1 },
	} {
		_, err := r.TryStart(`1`, change)
		r.Refused("a start with a bad "+what, err, faults.CodeInvalidArgument, what)
	}
}

func routes() []Scenario {
	return []Scenario{
		{Name: "malformed ids are refused everywhere", Covers: "SHD-3 ENG-25", Script: malformedIDs},
		{Name: "ids from before sharding route home, where they are not found", Covers: "SHD-3", Script: legacyIDs},
		{Name: "an unknown shard is unavailable, to be tried again", Covers: "SHD-22 ENG-25", Script: unknownShard},
		{Name: "an instance that is not there is not found", Covers: "ENG-25", Script: func(r *Run) {
			for what, err := range r.everyCall("wfi.s0."+newULID(), "tok.s0."+newULID()) {
				if strings.HasPrefix(what, "task") {
					if !lost(err) {
						r.Errorf("%s: %v", what, err)
					}
					continue
				}
				r.Refused(what, err, faults.CodeNotFound, "wfi.s0.")
			}
		}},
	}
}

// everyCall makes every call that names an instance or a task, and tells what each was
// answered with.
func (r *Run) everyCall(instance, task string) map[string]error {
	r.Helper()
	r.ID = instance
	lease := "1." + newULID()
	_, get := r.Instances.GetInstance(r.ctx, &wigglev1.GetInstanceRequest{InstanceId: instance})
	_, history := r.Instances.GetHistory(r.ctx, &wigglev1.GetHistoryRequest{InstanceId: instance})
	_, wait := r.Instances.WaitInstance(r.ctx, &wigglev1.WaitInstanceRequest{InstanceId: instance, Wait: durationpb.New(0)})
	_, cancel := r.Cancel("who?")
	t := &wigglev1.Task{Id: task, Lease: lease}
	_, fail := r.FailTask(t, Fail("x"))
	item := func(f *wigglev1.Fault) error {
		if f == nil {
			return nil
		}
		return faults.FromProto(f)
	}
	return map[string]error{
		"get": get, "history": history, "wait": wait, "cancel": cancel, "task fail": fail,
		"task report": item(r.Report(t, Unchanged)), "task beat": item(r.Beat(t, aLease, nil).GetFault()), "task release": item(r.Release(t)),
	}
}

func malformedIDs(r *Run) {
	id := newULID()
	for _, bad := range []string{
		"", "x", "wfi", "%s.", "%s.s.X", "%s.s-1." + id, "%s.s01." + id, "%s.s4294967296." + id, "%s.s0." + id + "x", "%s.s0." + id[1:],
		"%s.s0.." + id, "%s.s0." + id + "." + id, "%s_", "other.s0." + id, "%s.s0." + strings.Repeat("0", 130),
	} {
		name := func(kind string) string { return strings.ReplaceAll(bad, "%s", kind) }
		for what, err := range r.everyCall(name("wfi"), name("tok")) {
			r.Refused(fmt.Sprintf("%s of %q", what, bad), err, faults.CodeInvalidArgument, "")
		}
	}
	for what, err := range r.everyCall("tok.s0."+id, "wfi.s0."+id) {
		r.Refused(what+" of the other kind of id", err, faults.CodeInvalidArgument, "")
	}
}

func legacyIDs(r *Run) {
	id := newULID()
	for _, form := range []string{"%s_" + id, "%s_7f3c1b9e-0d5e-4f0a-9b7e-2f6f0c1d2e3a", "default.e1.s0." + id, "acme.c1.e12.s77." + id} {
		for what, err := range r.everyCall(strings.ReplaceAll(form, "%s", "wfi"), strings.ReplaceAll(form, "%s", "tok")) {
			// A task that was never there has a lease that nobody holds, where its id can be one.
			if strings.HasPrefix(what, "task") && lost(err) {
				continue
			}
			r.Refused(what+" of "+form, err, faults.CodeNotFound, "")
		}
	}
}

func unknownShard(r *Run) {
	id := newULID()
	for what, err := range r.everyCall("wfi.s77."+id, "tok.s77."+id) {
		f := r.Refused(what, err, faults.CodeUnavailable, "77")
		if f == nil || !errors.Is(f, faults.ErrShardUnknown) {
			continue
		}
		if after, ok := f.RetryAfter(); !ok || after <= 0 {
			r.Errorf("%s: does not say when to try again", what)
		}
	}
}
