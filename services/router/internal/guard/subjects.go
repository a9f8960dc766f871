package guard

import (
	"cmp"

	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wc "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/subject"
)

// defaultName is the namespace, and the queue, of who names none.
const defaultName = "default"

// about is what a call is about, as its message says.
type about struct {
	all   []subject.Subject // the caller needs the permission on every one
	items []subject.Subject // items of the call, each answered alone

	instances, tasks []string // ids, of tasks with their leases, of which the caller needs each
	batch            bool     // the ids are items, each answered alone

	// lists: the service answers with what the caller may see. What filter names must be within the caller's limits, where an
	// empty name stands for any.
	lists  bool
	filter []subject.Subject

	target string // for the audit log, where the above does not say it
}

// abouts says of every procedure whose permission has a scope where its message names the subject. Also of some others, for
// the audit log.
var abouts = map[string]func(proto.Message) about{
	wc.InstanceServiceStartInstanceProcedure: of(func(m *wigglev1.StartInstanceRequest) about {
		return about{all: []subject.Subject{start(m)}}
	}),
	wc.InstanceServiceStartInstancesProcedure: of(func(m *wigglev1.StartInstancesRequest) about {
		return about{items: each(m.GetStarts(), start)}
	}),
	wc.InstanceServiceGetInstanceProcedure:    of(func(m *wigglev1.GetInstanceRequest) about { return instance(m.GetInstanceId()) }),
	wc.InstanceServiceGetHistoryProcedure:     of(func(m *wigglev1.GetHistoryRequest) about { return instance(m.GetInstanceId()) }),
	wc.InstanceServiceWaitInstanceProcedure:   of(func(m *wigglev1.WaitInstanceRequest) about { return instance(m.GetInstanceId()) }),
	wc.InstanceServiceCancelInstanceProcedure: of(func(m *wigglev1.CancelInstanceRequest) about { return instance(m.GetInstanceId()) }),
	wc.InstanceServiceGetInstancesProcedure: of(func(m *wigglev1.GetInstancesRequest) about {
		return about{instances: each(m.GetInstances(), (*wigglev1.InstanceRef).GetInstanceId), batch: true}
	}),
	wc.InstanceServiceListInstancesProcedure:  of(func(m *wigglev1.ListInstancesRequest) about { return instances(m.GetFilter()) }),
	wc.InstanceServiceCountInstancesProcedure: of(func(m *wigglev1.CountInstancesRequest) about { return instances(m.GetFilter()) }),

	wc.WorkflowServiceRegisterWorkflowProcedure: of(func(m *wigglev1.RegisterWorkflowRequest) about {
		return about{all: []subject.Subject{named(m.GetNamespace(), m.GetDefinition().GetName())}}
	}),
	wc.WorkflowServiceGetWorkflowProcedure: of(func(m *wigglev1.GetWorkflowRequest) about {
		return about{all: []subject.Subject{named(m.GetNamespace(), m.GetName())}}
	}),
	wc.WorkflowServiceListWorkflowsProcedure: of(func(m *wigglev1.ListWorkflowsRequest) about {
		return within(orDefault(m.GetNamespace()))
	}),

	// Which workflow a schedule starts only the leader knows, and it may be another now than it was: it holds the schedule to
	// the caller's limits where it reads it.
	wc.ScheduleServicePutScheduleProcedure: of(func(m *wigglev1.PutScheduleRequest) about {
		s := m.GetSchedule()
		return about{
			all:    []subject.Subject{named(s.GetNamespace(), s.GetWorkflow())},
			target: orDefault(s.GetNamespace()) + "/" + s.GetWorkflow() + " schedule " + s.GetId(),
		}
	}),
	wc.ScheduleServiceGetScheduleProcedure: of(func(m *wigglev1.GetScheduleRequest) about {
		return schedule(m.GetNamespace(), m.GetId())
	}),
	wc.ScheduleServicePauseScheduleProcedure: of(func(m *wigglev1.PauseScheduleRequest) about {
		return schedule(m.GetNamespace(), m.GetId())
	}),
	wc.ScheduleServiceDeleteScheduleProcedure: of(func(m *wigglev1.DeleteScheduleRequest) about {
		return schedule(m.GetNamespace(), m.GetId())
	}),
	wc.ScheduleServiceListSchedulesProcedure: of(func(m *wigglev1.ListSchedulesRequest) about {
		return within(orDefault(m.GetNamespace()), m.GetWorkflow())
	}),

	wc.EventServicePollEventsProcedure: of(func(m *wigglev1.PollEventsRequest) about {
		return within(orDefault(m.GetFilter().GetNamespace()), m.GetFilter().GetWorkflows()...)
	}),
	wc.EventServiceDeleteEventConsumerProcedure: of(func(m *wigglev1.DeleteEventConsumerRequest) about {
		return about{target: m.GetConsumer()}
	}),

	wc.SearchServiceSearchProcedure:      of(func(m *wigglev1.SearchRequest) about { return searched(m.GetFilter()) }),
	wc.SearchServiceCountFacetsProcedure: of(func(m *wigglev1.CountFacetsRequest) about { return searched(m.GetFilter()) }),

	wc.WorkerServicePollTasksProcedure: of(func(m *wigglev1.PollTasksRequest) about {
		return about{all: Queues(m.GetNamespace(), m.GetQueues())}
	}),
	wc.WorkerServiceReportStepsProcedure: of(func(m *wigglev1.ReportStepsRequest) about {
		a := about{tasks: each(m.GetReports(), task), batch: true}
		if next := m.GetNext(); next != nil {
			a.all = Queues(next.GetNamespace(), next.GetQueues())
		}
		return a
	}),
	wc.WorkerServiceFailTaskProcedure: of(func(m *wigglev1.FailTaskRequest) about { return about{tasks: []string{task(m)}} }),
	wc.WorkerServiceHeartbeatProcedure: of(func(m *wigglev1.HeartbeatRequest) about {
		return about{tasks: each(m.GetBeats(), task), batch: true}
	}),
	wc.WorkerServiceReleaseTasksProcedure: of(func(m *wigglev1.ReleaseTasksRequest) about {
		return about{tasks: each(m.GetTasks(), task), batch: true}
	}),
}

// of takes a message for what it is. One of another type is about nothing, which allows nothing.
func of[M proto.Message](f func(M) about) func(proto.Message) about {
	return func(m proto.Message) about {
		typed, ok := m.(M)
		if !ok {
			return about{}
		}
		return f(typed)
	}
}

func each[T, U any](list []T, f func(T) U) []U {
	out := make([]U, len(list))
	for i, item := range list {
		out[i] = f(item)
	}
	return out
}

func orDefault(name string) string { return cmp.Or(name, defaultName) }

func named(namespace, name string) subject.Subject {
	return subject.Subject{Namespace: orDefault(namespace), Name: name, Found: true}
}

func start(m *wigglev1.StartInstanceRequest) subject.Subject {
	return named(m.GetNamespace(), m.GetWorkflow())
}

// task names a task with the lease under which the caller holds it, or held it.
func task[T interface {
	GetTaskId() string
	GetLease() string
}](m T) string {
	return subject.Task(m.GetTaskId(), m.GetLease())
}

func instance(id string) about { return about{instances: []string{id}} }

func schedule(namespace, id string) about {
	a := within(orDefault(namespace))
	a.target = orDefault(namespace) + " schedule " + id
	return a
}

// Queues are the subjects of who takes tasks. No queue means that with the name "default".
func Queues(namespace string, queues []string) []subject.Subject {
	if len(queues) == 0 {
		return []subject.Subject{named(namespace, defaultName)}
	}
	return each(queues, func(q string) subject.Subject { return named(namespace, orDefault(q)) })
}

// within is a list in a namespace, of some workflows or all.
func within(namespace string, workflows ...string) about {
	if len(workflows) == 0 {
		workflows = []string{""}
	}
	return about{lists: true, filter: each(workflows, func(w string) subject.Subject {
		return subject.Subject{Namespace: namespace, Name: w, Found: true}
	})}
}

func instances(f *wigglev1.InstanceFilter) about {
	return within(orDefault(f.GetNamespace()), f.GetWorkflow())
}

func searched(f *wigglev1.SearchFilter) about {
	return within(orDefault(f.GetNamespace()), f.GetWorkflows()...)
}
