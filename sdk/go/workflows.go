package wiggle

import (
	"context"
	"fmt"
	"iter"
	"time"

	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Registered tells how a definition is registered.
type Registered struct {
	// Version that holds the graph.
	Version int
	// Fingerprint is SHA-256 over the canonical form of the graph, in hexadecimal.
	Fingerprint string
	// Created is false if the graph was registered before.
	Created bool
	// ShardsBehind have not yet received it. Each does before it serves a start of it.
	ShardsBehind []int
}

// Register makes a definition known. Registering the same graph again changes
// nothing, so a process may do it at each start. Errors: [ErrInvalid] with the
// [Error.Problems], [ErrDefinitionConflict] with the [Error.Differences] if the
// declared version holds another graph.
func (c *Client) Register(ctx context.Context, def *Definition) (Registered, error) {
	req := &wigglev1.RegisterWorkflowRequest{Namespace: c.namespace, Definition: def.Proto()}
	res, err := call(ctx, c, "register "+def.Name(), callTimeout, c.workflows.RegisterWorkflow, req)
	if err != nil {
		return Registered{}, err
	}
	out := Registered{Version: int(res.GetVersion()), Fingerprint: res.GetFingerprint(), Created: res.GetCreated()}
	for _, s := range res.GetShardsBehind() {
		out.ShardsBehind = append(out.ShardsBehind, int(s))
	}
	return out, nil
}

// Workflow reads one definition; version 0 is the latest. [ErrNotFound] if there is
// none.
func (c *Client) Workflow(ctx context.Context, name string, version int) (*Definition, error) {
	op := "read workflow " + name
	if version != 0 {
		op += fmt.Sprintf(" version %d", version)
	}
	req := &wigglev1.GetWorkflowRequest{Namespace: c.namespace, Name: name, Version: toInt32(version)}
	res, err := call(ctx, c, op, callTimeout, c.workflows.GetWorkflow, req)
	if err != nil {
		return nil, err
	}
	// Not FromProto: the server has checked it, by rules that may be newer than ours.
	return &Definition{proto: proto.CloneOf(res.GetDefinition())}, nil
}

// WorkflowVersion tells about one registered version.
type WorkflowVersion struct {
	// Name and Version.
	Name    string
	Version int
	// Fingerprint is SHA-256 over the canonical form of the graph, in hexadecimal.
	Fingerprint string
	// RegisteredAt is when it was registered.
	RegisteredAt time.Time
	// Nodes is how many nodes it has.
	Nodes int
}

// Workflows iterates over every version of every workflow, by name, newest version
// first. An error ends it.
func (c *Client) Workflows(ctx context.Context) iter.Seq2[WorkflowVersion, error] {
	return func(yield func(WorkflowVersion, error) bool) {
		req := &wigglev1.ListWorkflowsRequest{Namespace: c.namespace}
		for {
			res, err := call(ctx, c, "list workflows", callTimeout, c.workflows.ListWorkflows, req)
			if err != nil {
				yield(WorkflowVersion{}, err)
				return
			}
			for _, w := range res.GetWorkflows() {
				v := WorkflowVersion{
					Name: w.GetName(), Version: int(w.GetVersion()), Fingerprint: w.GetFingerprint(),
					RegisteredAt: timeOf(w.GetRegisteredAt()), Nodes: int(w.GetNodes()),
				}
				if !yield(v, nil) {
					return
				}
			}
			if res.GetNextPageToken() == "" {
				return
			}
			req.PageToken = res.GetNextPageToken()
		}
	}
}
