package dispatch

import (
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// ReportBatch is a step that is done and those that its worker ran after it by itself
// (WRK-14). The machine makes one change of them, so that a batch is applied as a
// whole or not at all, like any other event. may is asked for the queues of the steps that followed, and its error is the
// event's; nil: all may be reported.
func ReportBatch(l store.Lease, ev machine.Report, following []machine.Following, may func(namespace, queue string) error) Event {
	ev.Fence = l.Fence
	apply := func(m *machine.Machine, env machine.Env, st machine.State) (*machine.Changes, error) {
		for i := range following {
			node := m.Graph().Node(following[i].Node)
			if may == nil || node == nil || !node.Kind.WorkerRun() {
				continue
			}
			if err := may(st.Instance.Namespace, node.Step.Queue); err != nil {
				return nil, err
			}
		}
		return m.ReportBatch(env, st, ev, following)
	}
	bytes := reportBytes(&ev)
	for i := range following {
		bytes += reportBytes(&following[i].Report)
	}
	return Event{Lease: l, By: machine.ByReport, Apply: apply, Following: int64(len(following)), Bytes: bytes}
}
