package conformance

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func lists() []Scenario {
	return []Scenario{
		{Name: "a list pages without repeats while rows are added", Covers: "SHD-26", Flow: chain("list", "a"), Script: pagedList},
		{Name: "a list is filtered by workflow, state and time", Covers: "SHD-26", Flow: tried(quick(1)), Script: filteredList},
		{Name: "a page token of another filter is refused", Covers: "SHD-26 ENG-25", Flow: chain("token", "a"), Script: otherToken},
		{Name: "counts are summed by state", Covers: "SHD-26", Flow: tried(quick(1)), Script: counted},
	}
}

// Count counts instances.
func (r *Run) Count(filter *wigglev1.InstanceFilter) *wigglev1.CountInstancesResponse {
	r.Helper()
	res, err := r.Instances.CountInstances(r.ctx, &wigglev1.CountInstancesRequest{Filter: filter})
	if err != nil {
		r.Fatalf("count: %v", err)
	}
	return res
}

// List reads a whole list in pages; between is called after each.
func (r *Run) List(filter *wigglev1.InstanceFilter, pageSize int32, between func()) []*wigglev1.Instance {
	r.Helper()
	var all []*wigglev1.Instance
	for token := ""; ; {
		res, err := r.Instances.ListInstances(r.ctx, &wigglev1.ListInstancesRequest{Filter: filter, PageSize: pageSize, PageToken: token})
		if err != nil {
			r.Fatalf("list: %v", err)
		}
		if len(res.GetInstances()) > int(pageSize) {
			r.Errorf("a page of %d has %d rows", pageSize, len(res.GetInstances()))
		}
		all = append(all, res.GetInstances()...)
		if token = res.GetNextPageToken(); token == "" {
			return all
		}
		between()
	}
}

func pagedList(r *Run) {
	const n = 12
	want := map[string]bool{}
	for i := range n {
		want[r.Start(fmt.Sprint(i))] = true
	}
	filter := &wigglev1.InstanceFilter{Workflow: r.Workflow}
	for _, size := range []int32{1000, n, 5, 1} {
		seen := map[string]bool{}
		all := r.List(filter, size, func() { r.Start(`"added"`) })
		for i, in := range all {
			if seen[in.GetId()] {
				r.Errorf("pages of %d: %s comes twice", size, in.GetId())
			}
			seen[in.GetId()] = true
			if i > 0 && all[i-1].GetCreatedAt().AsTime().Before(in.GetCreatedAt().AsTime()) {
				r.Errorf("pages of %d: %s comes after an older one", size, in.GetId())
			}
			if in.GetWorkflow() != r.Workflow || in.GetContext() != nil {
				r.Errorf("the list holds %v", in)
			}
		}
		for id := range want {
			if !seen[id] {
				r.Errorf("pages of %d: %s is missing", size, id)
			}
		}
	}
}

// someOfEach starts instances and leaves so many in each state.
func someOfEach(r *Run, counts map[wigglev1.InstanceState]int) map[string]wigglev1.InstanceState {
	states := map[string]wigglev1.InstanceState{}
	for state, n := range counts {
		for range n {
			id := r.Start(`1`)
			states[id] = state
			switch state {
			case completed:
				r.Work(nil)
			case failed:
				r.Work(map[string]Answer{"try": Fail("broken")})
			case cancelled:
				r.MustCancel("seen")
			default:
				r.Task("try")
			}
		}
	}
	return states
}

func filteredList(r *Run) {
	states := someOfEach(r, map[wigglev1.InstanceState]int{running: 2, completed: 3, failed: 2, cancelled: 1})
	count := func(what string, filter *wigglev1.InstanceFilter, match func(wigglev1.InstanceState) bool) {
		r.Helper()
		want := 0
		for _, s := range states {
			if match(s) {
				want++
			}
		}
		list := r.List(filter, 2, func() {})
		for _, in := range list {
			if in.GetState() != states[in.GetId()] || !match(in.GetState()) {
				r.Errorf("%s: the list holds %v", what, in)
			}
		}
		if n := r.Count(filter).GetTotal(); len(list) != want || int(n) != want {
			r.Errorf("%s: %d listed, %d counted, want %d", what, len(list), n, want)
		}
	}
	of := func(states ...wigglev1.InstanceState) *wigglev1.InstanceFilter {
		return &wigglev1.InstanceFilter{Workflow: r.Workflow, States: states}
	}
	count("all", of(), func(wigglev1.InstanceState) bool { return true })
	count("completed", of(completed), func(s wigglev1.InstanceState) bool { return s == completed })
	count("ended badly", of(failed, cancelled), func(s wigglev1.InstanceState) bool { return s == failed || s == cancelled })
	count("running", of(running), func(s wigglev1.InstanceState) bool { return s == running })
	soon := of()
	soon.CreatedFrom = timestamppb.New(time.Now().Add(24 * time.Hour))
	count("later", soon, func(wigglev1.InstanceState) bool { return false })
	before := of()
	before.CreatedBefore = soon.GetCreatedFrom()
	count("before then", before, func(wigglev1.InstanceState) bool { return true })
	elsewhere := of()
	elsewhere.Namespace = "elsewhere"
	count("another namespace", elsewhere, func(wigglev1.InstanceState) bool { return false })
}

func otherToken(r *Run) {
	for range 3 {
		r.Start(`1`)
	}
	list := func(filter *wigglev1.InstanceFilter, token string) (*wigglev1.ListInstancesResponse, error) {
		return r.Instances.ListInstances(r.ctx, &wigglev1.ListInstancesRequest{Filter: filter, PageSize: 1, PageToken: token})
	}
	filter := &wigglev1.InstanceFilter{Workflow: r.Workflow}
	res, err := list(filter, "")
	if err != nil || res.GetNextPageToken() == "" {
		r.Fatalf("list: %v, %v", res, err)
	}
	token := res.GetNextPageToken()
	_, err = list(&wigglev1.InstanceFilter{Workflow: r.Workflow, States: []wigglev1.InstanceState{running}}, token)
	r.Refused("the token of another filter", err, faults.CodeInvalidArgument, "token")
	_, err = list(filter, "nonsense")
	r.Refused("a token that is none", err, faults.CodeInvalidArgument, "token")
	if _, err := list(filter, token); err != nil {
		r.Errorf("the token of its own filter: %v", err)
	}
	_, err = r.Instances.GetHistory(r.ctx, &wigglev1.GetHistoryRequest{InstanceId: r.ID, PageToken: "nonsense"})
	r.Refused("a token of a history that is none", err, faults.CodeInvalidArgument, "token")
}

func counted(r *Run) {
	counts := map[wigglev1.InstanceState]int{running: 3, completed: 2, failed: 4, cancelled: 1}
	someOfEach(r, counts)
	res := r.Count(&wigglev1.InstanceFilter{Workflow: r.Workflow})
	if res.GetTotal() != 10 || len(res.GetByState()) != 4 {
		r.Errorf("counted %v", res)
	}
	for _, c := range res.GetByState() {
		if int(c.GetCount()) != counts[c.GetState()] {
			r.Errorf("%d are %s, want %d", c.GetCount(), c.GetState(), counts[c.GetState()])
		}
	}
	var shards int64
	for _, s := range res.GetShards() {
		if s.GetFault() != nil {
			r.Errorf("shard %d: %v", s.GetShard(), s.GetFault())
		}
		shards += s.GetCount()
	}
	if shards != 10 {
		r.Errorf("the shards count %d", shards)
	}
}

func histories() []Scenario {
	return []Scenario{
		{Name: "the history is complete, in order and has every time", Covers: "ENG-17 WRK-16", Flow: pair("history"), Script: wholeStory},
		{Name: "a history pages without repeats", Covers: "ENG-17", Flow: each("paged"), Script: pagedHistory},
		{Name: "answers of gates and chooses are in the history", Covers: "ENG-17", Flow: choosing(true), Script: func(r *Run) {
			r.Start(`1`)
			r.Work(map[string]Answer{"way": Choice("rail")})
			r.See(Want{State: completed, Context: `1`})
			if e := r.Steps("way")[0]; e.GetAnswer() != "rail" || e.GetOutput() != nil {
				r.Errorf("the choose is kept as %v", e)
			}
		}},
	}
}

func wholeStory(r *Run) {
	r.Start(`1`)
	began := time.Date(2026, 11, 1, 2, 3, 4, 567891234, time.UTC)
	done := began.Add(time.Second)
	timed := func(a Answer) Answer {
		return func(t *wigglev1.Task) Reply {
			reply := a(t)
			reply.Report.StartedAt, reply.Report.FinishedAt = timestamppb.New(began), timestamppb.New(done)
			return reply
		}
	}
	for _, step := range []string{"l", "r", "merge"} {
		t := r.Task(step, As("teller"))
		answer := Wrap(step)
		if step == "merge" {
			answer = Collect
		}
		r.Applied(step, r.Report(t, timed(answer)))
	}
	r.See(Want{State: completed, Context: `{"left":{"l":1},"right":{"r":1}}`})
	kinds := ""
	for _, e := range r.History(wholeHistory) {
		kinds += " " + e.GetKind().String()[len("HISTORY_KIND_"):]
		if e.GetStep() == "" {
			continue
		}
		times := []time.Time{e.GetQueuedAt().AsTime(), e.GetDispatchedAt().AsTime(), e.GetRecordedAt().AsTime()}
		if times[0].After(times[1]) || times[1].After(times[2]) || e.GetQueuedAt() == nil || e.GetDispatchedAt() == nil {
			r.Errorf("step %s was queued, dispatched and recorded at %v", e.GetStep(), times)
		}
		if !e.GetStartedAt().AsTime().Equal(began) || !e.GetFinishedAt().AsTime().Equal(done) {
			r.Errorf("step %s was started at %v and finished at %v, as its worker says", e.GetStep(), e.GetStartedAt(), e.GetFinishedAt())
		}
		if e.GetWorker() != "teller" || e.GetAttempt() != 1 || e.GetFence() != 1 || e.GetNode() != e.GetStep() {
			r.Errorf("step %s is kept as %v", e.GetStep(), e)
		}
	}
	if want := " STARTED FANNED_OUT STEP_COMPLETED ARRIVED STEP_COMPLETED ARRIVED JOINED STEP_COMPLETED COMPLETED"; kinds != want {
		r.Errorf("the history is%s, want%s", kinds, want)
	}
	if e := r.Steps("l")[0]; e.GetBranch() != "left" || string(e.GetOutput().GetData()) != `{"l":1}` {
		r.Errorf("the branch's step is kept as %v", e)
	}
}

func pagedHistory(r *Run) {
	r.Start(`{"items":[1,2,3,4,5,6,7,8,9]}`)
	r.Work(map[string]Answer{"gather": Collect})
	r.See(Want{State: completed, Context: `[1,2,3,4,5,6,7,8,9]`})
	type key struct {
		token    string
		position int32
	}
	whole := r.History(wholeHistory)
	for _, size := range []int32{1, 3, 10} {
		paged := r.History(size)
		if len(paged) != len(whole) {
			r.Errorf("pages of %d have %d entries, the whole has %d", size, len(paged), len(whole))
			continue
		}
		for i, e := range paged {
			if (key{e.GetTokenId(), e.GetPosition()}) != (key{whole[i].GetTokenId(), whole[i].GetPosition()}) {
				r.Errorf("pages of %d: entry %d is %v, want %v", size, i, e, whole[i])
			}
		}
	}
}

func waits() []Scenario {
	return []Scenario{
		{Name: "a wait ends with the instance", Covers: "WRK-20", Flow: chain("wait", "a"), Script: waited},
		{Name: "a wait whose time is over tells how things are", Covers: "WRK-20", Flow: chain("wait", "a"), Script: func(r *Run) {
			r.Start(`{"n":1}`)
			for _, d := range []time.Duration{0, moment} {
				res := r.wait(d)
				if res.GetEnded() || res.GetInstance().GetState() != running {
					r.Errorf("after %s: %v", d, res)
				}
				r.SeeJSON("the context so far", res.GetInstance().GetContext(), `{"n":1}`)
			}
			r.MustCancel("seen")
		}},
	}
}

func waited(r *Run) {
	r.Start(`1`)
	type answer struct {
		res *wigglev1.WaitInstanceResponse
		err error
	}
	answers := make(chan answer)
	const waiters = 3
	for range waiters {
		go func() {
			res, err := r.Instances.WaitInstance(r.ctx, &wigglev1.WaitInstanceRequest{InstanceId: r.ID, Wait: durationpb.New(patience)})
			answers <- answer{res, err}
		}()
	}
	r.Applied("a", r.Report(r.Task("a"), Wrap("a")))
	for range waiters {
		a := <-answers
		if a.err != nil || !a.res.GetEnded() || a.res.GetInstance().GetState() != completed {
			r.Errorf("the wait is answered with %v, %v", a.res, a.err)
			continue
		}
		r.SeeJSON("the result", a.res.GetInstance().GetContext(), `{"a":1}`)
	}
	if res := r.wait(patience); !res.GetEnded() {
		r.Errorf("a wait after the end is answered with %v", res)
	}
}
