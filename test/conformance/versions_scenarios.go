package conformance

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// OfVersion starts a version.
func OfVersion(v int32) StartOption {
	return func(q *wigglev1.StartInstanceRequest) { q.Version = v }
}

func versions() []Scenario {
	return []Scenario{
		{Name: "a running instance keeps its version, a new one gets the latest", Covers: "WF-11 WF-12", Flow: chain("versions", "a", "b"), Script: keptVersion},
		{Name: "a worker that is bound to a version gets no other", Covers: "WF-12 WRK-2 WRK-7", Flow: chain("bound", "a"), Script: boundVersion},
		{Name: "a start may name its version", Covers: "WF-12", Flow: chain("named", "old"), Script: func(r *Run) {
			r.RegisterFlow(chain("named", "new"))
			r.Start(`1`, OfVersion(1))
			r.Work(map[string]Answer{"old": Wrap("old"), "new": Wrap("new")})
			r.See(Want{State: completed, Context: `{"old":1}`})
		}},
		{Name: "an instance may start before any other shard knew its workflow", Covers: "WF-13", Script: startedRightAway},
	}
}

func keptVersion(r *Run) {
	first := r.Start(`1`)
	r.Applied("a", r.Report(r.Task("a"), Wrap("a1")))
	if res := r.RegisterFlow(chain("versions", "a", "c")); res.GetVersion() != 2 || !res.GetCreated() {
		r.Errorf("the changed graph is registered as %v", res)
	}
	second := r.Start(`1`)
	for id, want := range map[string]Want{
		first:  {State: completed, Context: `{"b":{"a1":1}}`, Attempts: map[string]int{"a": 1, "b": 1}},
		second: {State: completed, Context: `{"c":1}`, Attempts: map[string]int{"a": 1, "c": 1}},
	} {
		r.ID = id
		r.Work(map[string]Answer{"b": Wrap("b"), "c": Wrap("c")})
		r.See(want)
		if version := r.Get().GetVersion(); (version == 1) != (id == first) {
			r.Errorf("instance %s has version %d", id, version)
		}
	}
}

func boundVersion(r *Run) {
	r.Start(`1`)
	old := r.ID
	r.RegisterFlow(chain("bound", "a", "b"))
	r.Start(`2`)
	for _, version := range []int32{2, 1} {
		t := r.Task("a", Bound(version))
		if t.GetVersion() != version || (version == 1) != (t.GetInstanceId() == old) {
			r.Errorf("a worker of version %d got %v", version, t)
		}
		r.None(Bound(version))
		r.Applied("a", r.Report(t, Unchanged))
	}
	r.None(Bound(1))
	r.None(Bound(3))
	r.Applied("b", r.Report(r.Task("b", Bound(2)), Unchanged))
	r.See(Want{State: completed, Context: `2`, Attempts: map[string]int{"a": 1, "b": 1}})
}

func startedRightAway(r *Run) {
	for i := range 2 {
		r.Workflow = ""
		r.RegisterFlow(chain("right-away", "a"))
		for range 3 { // so many that every shard gets some
			r.Start(fmt.Sprint(i))
			r.Work(nil)
			r.See(Want{State: completed, Context: fmt.Sprint(i)})
		}
	}
}

func registrations() []Scenario {
	return []Scenario{
		{Name: "the same graph is registered once", Covers: "WF-10 WF-11", Script: sameGraph},
		{Name: "a changed graph gets the next version", Covers: "WF-10 WF-11", Script: changedGraph},
		{Name: "a declared version that another graph has is refused, with the difference", Covers: "WF-11 ENG-25", Script: versionConflict},
		{Name: "a graph that is not valid is refused with every problem", Covers: "WF-7 ENG-25", Script: invalidGraph},
		{Name: "definitions are read back", Covers: "WF-1 WF-12", Script: readBack},
	}
}

func sameGraph(r *Run) {
	first := r.RegisterFlow(chain("same", "a", "b"))
	again := r.RegisterFlow(chain("same", "a", "b"))
	if !first.GetCreated() || first.GetVersion() != 1 || again.GetCreated() || again.GetVersion() != 1 || first.GetFingerprint() != again.GetFingerprint() {
		r.Errorf("registered as %v, then as %v", first, again)
	}
	declared := chain("same", "a", "b").Proto()
	declared.Version = 1
	if res := r.Register(declared); res.GetCreated() || res.GetVersion() != 1 || res.GetFingerprint() != first.GetFingerprint() {
		r.Errorf("registered under its own version as %v", res)
	}
	if len(first.GetFingerprint()) != 64 {
		r.Errorf("the fingerprint is %q", first.GetFingerprint())
	}
}

func changedGraph(r *Run) {
	for i, steps := range [][]string{{"a"}, {"a", "b"}, {"a", "b", "c"}} {
		if res := r.RegisterFlow(chain("changed", steps...)); int(res.GetVersion()) != i+1 || !res.GetCreated() {
			r.Errorf("graph %d is registered as %v", i+1, res)
		}
	}
	declared := chain("changed", "x").Proto()
	declared.Version = 10
	if res := r.Register(declared); res.GetVersion() != 10 {
		r.Errorf("version 10 is registered as %v", res)
	}
	if res := r.RegisterFlow(chain("changed", "y")); res.GetVersion() != 11 {
		r.Errorf("the graph after version 10 is registered as %v", res)
	}
}

func versionConflict(r *Run) {
	r.RegisterFlow(chain("conflict", "a", "b"))
	other := wiggle.Define("conflict", func(f *wiggle.Flow) {
		f.Task("a", wiggle.Queue("special"))
		f.Task("c")
	}, wiggle.Version(1))
	_, err := r.RegisterAs(r.Workflow, other.Proto())
	f := r.Refused("another graph", err, faults.CodeFailedPrecondition, r.Workflow)
	conflict := f.ToProto().GetDefinitionConflict()
	if conflict.GetVersion() != 1 || conflict.GetWorkflow() != r.Workflow {
		r.Errorf("the conflict is %v", conflict)
	}
	differences := strings.Join(conflict.GetDifferences(), "\n")
	for _, want := range []string{"special", "b", "c"} {
		if !strings.Contains(differences, want) {
			r.Errorf("the differences do not speak of %q:\n%s", want, differences)
		}
	}
	if res := r.RegisterFlow(chain("conflict", "a", "b")); res.GetVersion() != 1 || res.GetCreated() {
		r.Errorf("the refused graph changed the registered one: %v", res)
	}
}

func invalidGraph(r *Run) {
	def := chain("invalid", "a", "b").Proto()
	def.Nodes["a"].GetTask().Next = "nowhere"
	def.Nodes["lonely"] = &wigglev1.Node{Kind: &wigglev1.Node_Sleep{Sleep: &wigglev1.SleepNode{
		Until: &wigglev1.SleepNode_Duration{Duration: durationpb.New(-time.Second)}, Next: "b",
	}}}
	name := unique("invalid")
	_, err := r.RegisterAs(name, def)
	f := r.Refused("an invalid graph", err, faults.CodeInvalidArgument, "")
	where := map[string]bool{}
	for _, p := range f.ToProto().GetInvalid().GetProblems() {
		where[p.GetWhere()] = true
	}
	if !where["a"] || !where["lonely"] {
		r.Errorf("the problems are %v", f.ToProto().GetInvalid())
	}
	if _, err := r.Workflows.GetWorkflow(r.ctx, &wigglev1.GetWorkflowRequest{Name: name}); err == nil {
		r.Errorf("the invalid graph is registered")
	}
}

func readBack(r *Run) {
	first := r.RegisterFlow(chain("read", "a"))
	r.RegisterFlow(chain("read", "a", "b"))
	for asked, want := range map[int32]int32{0: 2, 1: 1, 2: 2} {
		res, err := r.Workflows.GetWorkflow(r.ctx, &wigglev1.GetWorkflowRequest{Name: r.Workflow, Version: asked})
		if err != nil || res.GetDefinition().GetVersion() != want || len(res.GetDefinition().GetNodes()) != int(want)+1 {
			r.Errorf("version %d is read as %v, %v", asked, res, err)
		}
		if asked == 1 && (res.GetFingerprint() != first.GetFingerprint() || res.GetRegisteredAt() == nil) {
			r.Errorf("version 1 is read as %v", res)
		}
	}
	_, err := r.Workflows.GetWorkflow(r.ctx, &wigglev1.GetWorkflowRequest{Name: r.Workflow, Version: 3})
	r.Refused("version 3", err, faults.CodeNotFound, r.Workflow)
	found := map[int32]bool{}
	for token := ""; ; {
		res, err := r.Workflows.ListWorkflows(r.ctx, &wigglev1.ListWorkflowsRequest{PageSize: 7, PageToken: token})
		if err != nil {
			r.Fatalf("list: %v", err)
		}
		for _, v := range res.GetWorkflows() {
			if v.GetName() == r.Workflow {
				found[v.GetVersion()] = true
			}
		}
		if token = res.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(found) != 2 || !found[1] || !found[2] {
		r.Errorf("the list has versions %v", found)
	}
}
