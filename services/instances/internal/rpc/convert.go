package rpc

import (
	"fmt"
	"strconv"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

func versionName(workflow string, version int32) string {
	return fmt.Sprintf("%s version %d", workflow, version)
}

func instanceProto(shard int, in *machine.Instance) *wigglev1.Instance {
	return &wigglev1.Instance{
		Id: instanceID(shard, in.ID), Namespace: in.Namespace, Workflow: in.Workflow, Version: in.Version,
		State: wigglev1.InstanceState(in.State), Priority: int32(in.Priority),
		CreatedAt: stamp(in.CreatedAt), EndedAt: stamp(in.EndedAt),
		Context: payloadProto(in.Context), Failure: in.Failure, Revision: in.Position,
	}
}

func tokenProto(shard int, t *machine.Token) *wigglev1.Token {
	out := &wigglev1.Token{
		Id: tokenID(shard, t.ID), ParentId: tokenID(shard, t.Parent), Node: t.Node,
		State: wigglev1.TokenState(t.State), DueAt: stamp(t.DueAt), Worker: t.Worker,
		LeaseExpiresAt: stamp(t.LeaseUntil), LastFailure: t.Failure,
	}
	switch t.State {
	case machine.Ready, machine.Leased:
		out.Attempt = t.Attempt
	case machine.Joined:
		out.PendingBranches = t.Pending
	default: // neither an attempt nor branches
	}
	if !t.Parent.IsZero() {
		if out.Branch = t.Key; t.Key == "" {
			out.Branch = strconv.Itoa(int(t.Index))
		}
	}
	return out
}
