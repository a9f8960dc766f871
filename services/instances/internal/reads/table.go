package reads

import (
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
)

// Freshness is how old an answer may be.
type Freshness int

const (
	// Change is a call that changes something, or reads no shard.
	Change Freshness = iota + 1
	// Primary is a read that is as of now.
	Primary
	// Bounded is a read that may lag behind the primary, within the bound of the replica.
	Bounded
)

// String returns the freshness in words.
func (f Freshness) String() string {
	switch f {
	case Change:
		return "change"
	case Primary:
		return "primary"
	case Bounded:
		return "bounded staleness"
	}
	return "unknown"
}

// FreshnessOf is the freshness of every procedure that the service offers; false for one that is not in the table.
func FreshnessOf(procedure string) (Freshness, bool) {
	f, ok := map[string]Freshness{
		wigglev1connect.InstanceServiceStartInstanceProcedure:  Change,
		wigglev1connect.InstanceServiceStartInstancesProcedure: Change,
		wigglev1connect.InstanceServiceCancelInstanceProcedure: Change,
		// After an action of the caller's: start and get, cancel and get (SHD, where each operation goes).
		wigglev1connect.InstanceServiceGetInstanceProcedure:  Primary,
		wigglev1connect.InstanceServiceWaitInstanceProcedure: Primary,
		// The caller says how new each instance must be at least.
		wigglev1connect.InstanceServiceGetInstancesProcedure:   Bounded,
		wigglev1connect.InstanceServiceGetHistoryProcedure:     Bounded,
		wigglev1connect.InstanceServiceListInstancesProcedure:  Bounded,
		wigglev1connect.InstanceServiceCountInstancesProcedure: Bounded,

		wigglev1connect.WorkerServiceWorkProcedure:         Change,
		wigglev1connect.WorkerServicePollTasksProcedure:    Change,
		wigglev1connect.WorkerServiceReportStepsProcedure:  Change,
		wigglev1connect.WorkerServiceFailTaskProcedure:     Change,
		wigglev1connect.WorkerServiceHeartbeatProcedure:    Change,
		wigglev1connect.WorkerServiceReleaseTasksProcedure: Change,

		wigglev1connect.WorkflowServiceRegisterWorkflowProcedure: Change,
		// The latest version decides what is started or registered next.
		wigglev1connect.WorkflowServiceGetWorkflowProcedure:   Primary,
		wigglev1connect.WorkflowServiceListWorkflowsProcedure: Bounded,

		// Numbers of the log are taken on the primary, and so is what consumers have acknowledged.
		wigglev1connect.EventServicePollEventsProcedure:          Change,
		wigglev1connect.EventServiceAckEventsProcedure:           Change,
		wigglev1connect.EventServiceListEventConsumersProcedure:  Primary,
		wigglev1connect.EventServiceDeleteEventConsumerProcedure: Change,

		wiggleinternalv1connect.ShardServiceStatusProcedure:             Change,
		wiggleinternalv1connect.ShardServiceWatchWorkProcedure:          Change,
		wiggleinternalv1connect.ShardServiceRegisterDefinitionProcedure: Change,
		wiggleinternalv1connect.ShardServicePutDefinitionsProcedure:     Change,
		// What a shard lacks is written to it.
		wiggleinternalv1connect.ShardServiceListDefinitionsProcedure: Primary,

		wiggleinternalv1connect.ScanServiceScanInstancesProcedure: Bounded,

		// What has just started, or been leased, is asked for at once.
		wiggleinternalv1connect.ScopeServiceResolveInstancesProcedure: Primary,
		wiggleinternalv1connect.ScopeServiceResolveTasksProcedure:     Primary,
	}[procedure]
	return f, ok
}
