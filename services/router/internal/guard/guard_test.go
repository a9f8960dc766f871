package guard_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wc "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wic "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/guard"
)

// AUT-4: every public RPC declares its permission, also of a service that is not mounted yet.
func TestEveryRPCHasAPermission(t *testing.T) {
	t.Parallel()
	found := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("wiggle.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			found++
			if _, err := guard.Rules(string(service.FullName())); err != nil {
				t.Error(err)
			}
			if !slices.Contains(public, string(service.FullName())) {
				t.Errorf("%s is not in the list of these tests, nor, perhaps, mounted by the router", service.FullName())
			}
		}
		return true
	})
	if found != len(public) {
		t.Errorf("%d public services were found", found)
	}
	if _, err := guard.Rules("wiggle.v1.NoService"); err == nil {
		t.Error("a service without a schema has rules")
	}
	if _, err := guard.Rules("grpc.channelz.v1.Channelz", "google.longrunning.Operations"); err == nil {
		t.Error("a service that is not there has rules")
	}
}

// Done when 2: every RPC, with a principal that lacks the permission and one that has it.
func TestEveryRPC(t *testing.T) {
	t.Parallel()
	f := start(t)
	for procedure, rule := range f.rules {
		if !strings.HasPrefix(procedure, "/wiggle.v1.") {
			continue
		}
		message := inScope(procedure)
		none := f.call(t, procedure, message)
		other := f.with(t, procedure, message, "other.action")
		if rule.Needs == "anyone" {
			if none.code != "unimplemented" {
				t.Errorf("%s without a credential: %+v", procedure, none)
			}
			continue
		}
		if none.code != "unauthenticated" || !strings.Contains(none.text, "WIGGLE_API_KEY") {
			t.Errorf("%s without a credential: %+v", procedure, none)
		}
		if rule.Needs == "signed in" {
			if other.code != "unimplemented" {
				t.Errorf("%s signed in: %+v", procedure, other)
			}
			continue
		}
		if other.code != "permission_denied" || !strings.Contains(other.text, "key/caller") || !strings.Contains(other.text, rule.Action) {
			t.Errorf("%s without the permission: %+v", procedure, other)
		}
		if last := f.audit.last(); last.GetAction() != rule.Action || last.GetPrincipal() != "key/caller" || last.GetAllowed() {
			t.Errorf("%s: the audit log has %v", procedure, last)
		}
		if procedure == wc.InstanceServiceWaitInstanceProcedure {
			continue // it would wait: see TestRevokedWhileItWaits
		}
		word, _, _ := strings.Cut(rule.Action, ".")
		for _, permission := range []string{rule.Action, "*", word + ".*"} {
			if got := f.with(t, procedure, message, permission); got.code != "unimplemented" && got.code != "" {
				t.Errorf("%s with %s: %+v", procedure, permission, got)
			}
		}
	}
}

// inScope is a message of a procedure about orders/refund, where the procedure is limited.
func inScope(procedure string) proto.Message {
	for _, c := range scopeCases() {
		if c.procedure == procedure {
			return c.message("orders", "refund")
		}
	}
	return &emptypb.Empty{}
}

type scopeCase struct {
	procedure, action string
	message           func(namespace, name string) proto.Message
	wide              bool // a list: within the namespace is enough
	inside            bool // the service holds it to the limits itself
}

func scopeCases() []scopeCase {
	filter := func(ns, name string) *wigglev1.InstanceFilter {
		return &wigglev1.InstanceFilter{Namespace: ns, Workflow: name}
	}
	search := func(ns, name string) *wigglev1.SearchFilter {
		return &wigglev1.SearchFilter{Namespace: ns, Workflows: []string{name}}
	}
	return []scopeCase{
		{procedure: wc.InstanceServiceStartInstanceProcedure, action: "instance.start", message: func(ns, name string) proto.Message {
			return &wigglev1.StartInstanceRequest{Namespace: ns, Workflow: name}
		}},
		{procedure: wc.InstanceServiceGetInstanceProcedure, action: "instance.read", message: func(ns, name string) proto.Message {
			return &wigglev1.GetInstanceRequest{InstanceId: ns + "/" + name}
		}},
		{procedure: wc.InstanceServiceGetHistoryProcedure, action: "instance.read", message: func(ns, name string) proto.Message {
			return &wigglev1.GetHistoryRequest{InstanceId: ns + "/" + name}
		}},
		{procedure: wc.InstanceServiceCancelInstanceProcedure, action: "instance.cancel", message: func(ns, name string) proto.Message {
			return &wigglev1.CancelInstanceRequest{InstanceId: ns + "/" + name}
		}},
		{procedure: wc.InstanceServiceListInstancesProcedure, action: "instance.read", message: func(ns, name string) proto.Message {
			return &wigglev1.ListInstancesRequest{Filter: filter(ns, name)}
		}},
		{procedure: wc.InstanceServiceCountInstancesProcedure, action: "instance.read", message: func(ns, name string) proto.Message {
			return &wigglev1.CountInstancesRequest{Filter: filter(ns, name)}
		}},
		{procedure: wc.WorkflowServiceRegisterWorkflowProcedure, action: "workflow.register", message: func(ns, name string) proto.Message {
			return &wigglev1.RegisterWorkflowRequest{Namespace: ns, Definition: &wigglev1.Definition{Name: name}}
		}},
		{procedure: wc.WorkflowServiceGetWorkflowProcedure, action: "workflow.read", message: func(ns, name string) proto.Message {
			return &wigglev1.GetWorkflowRequest{Namespace: ns, Name: name}
		}},
		{procedure: wc.WorkflowServiceListWorkflowsProcedure, action: "workflow.read", wide: true, message: func(ns, _ string) proto.Message {
			return &wigglev1.ListWorkflowsRequest{Namespace: ns}
		}},
		{procedure: wc.ScheduleServicePutScheduleProcedure, action: "schedule.manage", message: func(ns, name string) proto.Message {
			return &wigglev1.PutScheduleRequest{Schedule: &wigglev1.Schedule{Id: "s", Namespace: ns, Workflow: name}}
		}},
		{procedure: wc.ScheduleServiceGetScheduleProcedure, action: "schedule.read", wide: true, message: func(ns, _ string) proto.Message {
			return &wigglev1.GetScheduleRequest{Namespace: ns, Id: "s"}
		}},
		{procedure: wc.ScheduleServicePauseScheduleProcedure, action: "schedule.manage", wide: true, message: func(ns, _ string) proto.Message {
			return &wigglev1.PauseScheduleRequest{Namespace: ns, Id: "s"}
		}},
		{procedure: wc.ScheduleServiceDeleteScheduleProcedure, action: "schedule.manage", wide: true, message: func(ns, _ string) proto.Message {
			return &wigglev1.DeleteScheduleRequest{Namespace: ns, Id: "s"}
		}},
		{procedure: wc.ScheduleServiceListSchedulesProcedure, action: "schedule.read", message: func(ns, name string) proto.Message {
			return &wigglev1.ListSchedulesRequest{Namespace: ns, Workflow: name}
		}},
		{procedure: wc.EventServicePollEventsProcedure, action: "event.read", message: func(ns, name string) proto.Message {
			return &wigglev1.PollEventsRequest{Filter: &wigglev1.EventFilter{Namespace: ns, Workflows: []string{name}}}
		}},
		{procedure: wc.SearchServiceSearchProcedure, action: "instance.read", message: func(ns, name string) proto.Message {
			return &wigglev1.SearchRequest{Filter: search(ns, name)}
		}},
		{procedure: wc.SearchServiceCountFacetsProcedure, action: "instance.read", message: func(ns, name string) proto.Message {
			return &wigglev1.CountFacetsRequest{Filter: search(ns, name)}
		}},
		{procedure: wc.WorkerServicePollTasksProcedure, action: "task.poll", message: func(ns, name string) proto.Message {
			return &wigglev1.PollTasksRequest{Namespace: ns, Queues: []string{name}}
		}},
		{procedure: wc.WorkerServiceFailTaskProcedure, action: "task.poll", message: func(ns, name string) proto.Message {
			return &wigglev1.FailTaskRequest{TaskId: ns + "/" + name}
		}},
		{procedure: wc.WorkerServiceReportStepsProcedure, action: "task.poll", inside: true, message: func(ns, name string) proto.Message {
			return &wigglev1.ReportStepsRequest{
				Next: &wigglev1.Continuation{Namespace: ns, Queues: []string{name}}, Reports: []*wigglev1.StepReport{{TaskId: "orders/refund"}},
			}
		}},
	}
}

// Done when 2: scopes of namespace, workflow and queue.
func TestScopes(t *testing.T) {
	t.Parallel()
	f := start(t)
	for _, c := range scopeCases() {
		for _, scope := range []struct {
			scope           string
			namespace, name string
			allowed         bool
		}{
			{"orders/refund", "orders", "refund", true},
			{"orders/*", "orders", "refund", true},
			{"ord*/re*", "orders", "refund", true},
			{"*/refund", "orders", "refund", true},
			{"default/refund", "", "refund", true},
			{"orders/refund", "orders", "billing", c.wide},
			{"orders/refund", "shop", "refund", false},
			{"orders/*", "", "refund", false},
			{"*/refund", "orders", "billing", c.wide},
		} {
			ns := scope.namespace
			if ns == "" && byID(c.procedure) {
				ns = "default" // an id always has one
			}
			got := f.with(t, c.procedure, c.message(ns, scope.name), c.action+":"+scope.scope)
			if passed := got.code == "unimplemented" || got.code == ""; passed != scope.allowed {
				t.Errorf("%s on %s/%s with %s: %+v", c.procedure, scope.namespace, scope.name, scope.scope, got)
			}
			if !scope.allowed && (got.code != "permission_denied" || !strings.Contains(got.text, c.action)) {
				t.Errorf("%s on %s/%s with %s: %+v", c.procedure, scope.namespace, scope.name, scope.scope, got)
			}
		}
	}
}

func byID(procedure string) bool {
	return slices.Contains([]string{
		wc.InstanceServiceGetInstanceProcedure, wc.InstanceServiceGetHistoryProcedure, wc.InstanceServiceCancelInstanceProcedure,
		wc.WorkerServiceFailTaskProcedure,
	}, procedure)
}

// Every procedure that is limited by names is in the cases, a batch, or held to its limits by its handler.
func TestScopeCasesAreComplete(t *testing.T) {
	t.Parallel()
	elsewhere := []string{
		wc.InstanceServiceStartInstancesProcedure, wc.InstanceServiceGetInstancesProcedure, wc.WorkerServiceHeartbeatProcedure,
		wc.WorkerServiceReleaseTasksProcedure, wc.WorkerServiceWorkProcedure, wc.InstanceServiceWaitInstanceProcedure,
	}
	rules, err := guard.Rules(public...)
	if err != nil {
		t.Fatal(err)
	}
	for procedure, rule := range rules {
		named := slices.ContainsFunc(scopeCases(), func(c scopeCase) bool { return c.procedure == procedure && c.action == rule.Action })
		if scoped := strings.Contains(rule.Needs, "namespace/"); scoped != (named || slices.Contains(elsewhere, procedure)) {
			t.Errorf("%s needs %s, and has no case", procedure, rule.Needs)
		}
	}
}

// Items of a batch are judged one by one.
func TestBatches(t *testing.T) {
	t.Parallel()
	f := start(t)
	starts := &wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{
		{Namespace: "orders", Workflow: "refund"}, {Namespace: "orders", Workflow: "billing"}, {Namespace: "shop", Workflow: "refund"},
	}}
	got := f.with(t, wc.InstanceServiceStartInstancesProcedure, starts, "instance.start:orders/refund")
	res := &wigglev1.StartInstancesResponse{}
	if err := proto.Unmarshal([]byte(got.text), res); err != nil || got.code != "" || len(res.GetOutcomes()) != 3 {
		t.Fatalf("starts: %+v, %v", got, err)
	}
	for i, o := range res.GetOutcomes() {
		missing := o.GetFault().GetPermissionMissing()
		if (missing != nil) != (i > 0) || missing != nil && missing.GetPermission() == "instance.start:orders/refund" {
			t.Errorf("start %d: %v", i, o)
		}
	}
	if last := f.audit.last(); !strings.Contains(last.GetDetail(), "2 of 3 items") || last.GetTarget() != "orders/refund and 2 more" {
		t.Errorf("the audit log has %v", last)
	}

	reports := &wigglev1.ReportStepsRequest{Reports: []*wigglev1.StepReport{{TaskId: "orders/gpu"}, {TaskId: "orders/cpu"}, {TaskId: "none"}}}
	got = f.with(t, wc.WorkerServiceReportStepsProcedure, reports, "task.poll:*/gpu")
	reported := &wigglev1.ReportStepsResponse{}
	if err := proto.Unmarshal([]byte(got.text), reported); err != nil || got.code != "" || len(reported.GetOutcomes()) != 3 {
		t.Fatalf("reports: %+v, %v", got, err)
	}
	for i, o := range reported.GetOutcomes() {
		if (o.GetFault().GetPermissionMissing() != nil) != (i > 0) {
			t.Errorf("report %d: %v", i, o)
		}
	}
	for _, c := range []struct {
		procedure string
		message   proto.Message
		action    string
	}{
		{wc.InstanceServiceGetInstancesProcedure, &wigglev1.GetInstancesRequest{Instances: []*wigglev1.InstanceRef{{InstanceId: "a/b"}}}, "instance.read"},
		{wc.WorkerServiceHeartbeatProcedure, &wigglev1.HeartbeatRequest{Beats: []*wigglev1.Beat{{TaskId: "a/b"}}}, "task.poll"},
		{wc.WorkerServiceReleaseTasksProcedure, &wigglev1.ReleaseTasksRequest{Tasks: []*wigglev1.TaskLease{{TaskId: "a/b"}}}, "task.poll"},
	} {
		if got := f.with(t, c.procedure, c.message, c.action+":x/y"); got.code != "unimplemented" {
			t.Errorf("%s: %+v: the call goes on for the items that are allowed", c.procedure, got)
		}
		if last := f.audit.last(); !strings.Contains(last.GetDetail(), "1 of 1 items") || last.GetTarget() != "a/b" {
			t.Errorf("%s: the audit log has %v", c.procedure, last)
		}
	}
}

// An id that does not exist tells nothing: it is denied in the same words as one of somebody else.
func TestIDsTellNothing(t *testing.T) {
	t.Parallel()
	f := start(t)
	var texts []string
	for _, id := range []string{"shop/billing", "does-not-exist"} {
		got := f.with(t, wc.InstanceServiceGetInstanceProcedure, &wigglev1.GetInstanceRequest{InstanceId: id}, "instance.read:orders/*")
		if got.code != "permission_denied" {
			t.Errorf("%s: %+v", id, got)
		}
		texts = append(texts, strings.ReplaceAll(got.text, id, "X"))
	}
	if texts[0] != texts[1] {
		t.Errorf("%q", texts)
	}
	got := f.with(t, wc.InstanceServiceGetInstanceProcedure, &wigglev1.GetInstanceRequest{InstanceId: "does-not-exist"}, "instance.read")
	if got.code != "unimplemented" {
		t.Errorf("who may see everything: %+v", got)
	}
}

// What only services may call, others may not, whatever their permissions are.
func TestServicesOnly(t *testing.T) {
	t.Parallel()
	f := start(t)
	if got := f.with(t, wic.ScanServiceScanInstancesProcedure, &emptypb.Empty{}, "*"); got.code != "permission_denied" {
		t.Errorf("an administrator: %+v", got)
	}
	if got := f.call(t, wic.ScanServiceScanInstancesProcedure, &emptypb.Empty{}); got.code != "unauthenticated" {
		t.Errorf("nobody: %+v", got)
	}
	got := f.call(t, wic.ScanServiceScanInstancesProcedure, &emptypb.Empty{}, "Wiggle-Service-Key", serviceKey)
	if got.code != "unimplemented" {
		t.Errorf("a service: %+v", got)
	}
}

// A principal in a header counts for nothing in front of a router.
func TestPrincipalHeaderIsNotBelieved(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := f.known.set(t, keyOf("x"), "x", "*")
	header := map[string][]string{}
	p.Write(header)
	for name, values := range header {
		if got := f.call(t, wc.ClusterServiceListShardsProcedure, &emptypb.Empty{}, name, values[0]); got.code != "unauthenticated" {
			t.Errorf("%+v", got)
		}
	}
}

// Operators' actions are recorded with what came of them.
func TestOperatorsAreRecorded(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.with(t, wc.InstanceServiceCancelInstanceProcedure, &wigglev1.CancelInstanceRequest{InstanceId: "orders/refund"}, "*")
	last := f.audit.last()
	if last.GetAction() != "instance.cancel" || !last.GetAllowed() || last.GetTarget() != "orders/refund" || last.GetDetail() != "OK" {
		t.Errorf("the audit log has %v", last)
	}
}

// WIGGLE_AUTH=off lets everything through.
func TestOff(t *testing.T) {
	t.Parallel()
	f := start(t, func(cfg *guard.Config) { cfg.Off, cfg.Known, cfg.Audit = true, nil, nil })
	for procedure := range f.rules {
		if procedure == wc.InstanceServiceWaitInstanceProcedure || strings.HasPrefix(procedure, "/grpc.") {
			continue
		}
		if got := f.call(t, procedure, inScope(procedure)); got.code != "unimplemented" && got.code != "" {
			t.Errorf("%s: %+v", procedure, got)
		}
	}
}
