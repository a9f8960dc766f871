package pgstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore/internal/db"
)

// How rows are read. Writing is in columns.go.

// tokenColumns are a token's columns in the order of tokenTargets.
const tokenColumns = `t.id, t.instance_id, t.parent_id, t.fence, t.settled_fence, t.timeout_us, t.due_at, t.queued_at, t.leased_at,
	t.lease_until, t.deadline, t.settled_retry_at, t.idx, t.attempt, t.version, t.width, t.pending, t.next_idx, t.position, t.state,
	t.priority, t.settled_by, t.held, t.has_result, t.namespace, t.workflow, t.queue, t.node, t.key, t.worker, t.view_type,
	t.progress_type, t.loops, t.failure, t.trace, `

const (
	tokenPayloads   = `t.progress, t.view`
	tokenNoPayloads = `null::bytea as progress, null::bytea as view`
)

// instanceColumns are an instance's columns in the order of [db.Instance], without
// the context.
const instanceColumns = `i.id, i.created_at, i.ended_at, i.version, i.position, i.state, i.priority, i.namespace, i.workflow,
	'' as context_type, i.trace, i.failure, null::bytea as context`

func tokenTargets(r *db.Token) []any {
	return []any{
		(*[16]byte)(&r.ID), (*[16]byte)(&r.InstanceID), &r.ParentID, &r.Fence, &r.SettledFence, &r.TimeoutUs, &r.DueAt, &r.QueuedAt,
		&r.LeasedAt, &r.LeaseUntil, &r.Deadline, &r.SettledRetryAt, &r.Idx, &r.Attempt, &r.Version, &r.Width, &r.Pending, &r.NextIdx,
		&r.Position, &r.State, &r.Priority, &r.SettledBy, &r.Held, &r.HasResult, &r.Namespace, &r.Workflow, &r.Queue, &r.Node, &r.Key,
		&r.Worker, &r.ViewType, &r.ProgressType, &r.Loops, &r.Failure, &r.Trace, &r.Progress, &r.View,
	}
}

func instanceTargets(r *db.Instance) []any {
	return []any{
		(*[16]byte)(&r.ID), &r.CreatedAt, &r.EndedAt, &r.Version, &r.Position, &r.State, &r.Priority, &r.Namespace, &r.Workflow,
		&r.ContextType, &r.Trace, &r.Failure, &r.Context,
	}
}

func scanToken(rows pgx.Rows) (*machine.Token, error) {
	var r db.Token
	if err := rows.Scan(tokenTargets(&r)...); err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	return decodeToken(&r)
}

func scanInstance(rows pgx.Rows) (*machine.Instance, error) {
	var r db.Instance
	if err := rows.Scan(instanceTargets(&r)...); err != nil {
		return nil, fmt.Errorf("read instance: %w", err)
	}
	return decodeInstance(&r)
}

func decodeToken(r *db.Token) (*machine.Token, error) {
	failure, err := decodeFailure(r.Failure)
	if err != nil {
		return nil, err
	}
	loops, err := decodeLoops(r.Loops)
	if err != nil {
		return nil, err
	}
	return &machine.Token{
		ID: r.ID, Instance: r.InstanceID, Parent: r.ParentID.Bytes, Index: r.Idx, Key: r.Key,
		Node: r.Node, State: machine.TokenState(r.State), Held: r.Held, DueAt: when(r.DueAt),
		Attempt: r.Attempt, Fence: r.Fence, Queue: r.Queue, Priority: r.Priority,
		Timeout: time.Duration(r.TimeoutUs) * time.Microsecond, QueuedAt: when(r.QueuedAt),
		Worker: r.Worker, LeasedAt: when(r.LeasedAt), LeaseUntil: when(r.LeaseUntil), Deadline: when(r.Deadline),
		View:      machine.Payload{ContentType: r.ViewType, Data: r.View},
		HasResult: r.HasResult,
		Progress:  machine.Payload{ContentType: r.ProgressType, Data: r.Progress},
		Failure:   failure,
		Width:     r.Width, Pending: r.Pending, Next: r.NextIdx, Loops: loops, Position: r.Position,
		Trace:   r.Trace.String,
		Settled: machine.Settled{Fence: r.SettledFence, By: machine.SettledBy(r.SettledBy), RetryAt: when(r.SettledRetryAt)},
	}, nil
}

func decodeInstance(r *db.Instance) (*machine.Instance, error) {
	failure, err := decodeFailure(r.Failure)
	if err != nil {
		return nil, err
	}
	trace, err := decodeTrace(r.Trace)
	if err != nil {
		return nil, err
	}
	return &machine.Instance{
		ID: r.ID, Namespace: r.Namespace, Workflow: r.Workflow, Version: r.Version,
		State: machine.InstanceState(r.State), Priority: r.Priority, CreatedAt: when(r.CreatedAt), EndedAt: when(r.EndedAt),
		Context: machine.Payload{ContentType: r.ContextType, Data: r.Context}, Failure: failure, Trace: trace, Position: r.Position,
	}, nil
}

func encodeFailure(f *wigglev1.Failure) ([]byte, error) {
	if f == nil {
		return nil, nil
	}
	// Appending to an empty slice keeps a failure without fields apart from none.
	return proto.MarshalOptions{}.MarshalAppend([]byte{}, f)
}

func decodeFailure(data []byte) (*wigglev1.Failure, error) {
	if data == nil {
		return nil, nil //nolint:nilnil // no failure
	}
	f := &wigglev1.Failure{}
	if err := proto.Unmarshal(data, f); err != nil {
		return nil, fmt.Errorf("read failure: %w", err)
	}
	return f, nil
}

// Small maps are stored as their entries in the order of their keys: the length of
// the key as a varint, the key, and then the same of the value, or the count as a
// varint. No map is NULL.

var errMap = errors.New("stored map is cut short")

func encodeTrace(m map[string]string) []byte {
	return encodeMap(m, func(data []byte, v string) []byte { return append(binary.AppendUvarint(data, uint64(len(v))), v...) })
}

func encodeLoops(m map[string]int32) []byte {
	return encodeMap(m, func(data []byte, v int32) []byte { return binary.AppendVarint(data, int64(v)) })
}

func encodeMap[V any](m map[string]V, value func([]byte, V) []byte) []byte {
	if len(m) == 0 {
		return nil
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var data []byte
	for _, k := range keys {
		data = append(binary.AppendUvarint(data, uint64(len(k))), k...)
		data = value(data, m[k])
	}
	return data
}

func decodeTrace(data []byte) (map[string]string, error) { return decodeMap(data, cutText) }

func decodeLoops(data []byte) (map[string]int32, error) {
	return decodeMap(data, func(data []byte) (int32, []byte, error) {
		v, n := binary.Varint(data)
		if n <= 0 {
			return 0, nil, errMap
		}
		return int32(v), data[n:], nil //nolint:gosec // written from an int32
	})
}

func decodeMap[V any](data []byte, value func([]byte) (V, []byte, error)) (map[string]V, error) {
	if len(data) == 0 {
		return nil, nil //nolint:nilnil // no map
	}
	m := map[string]V{}
	for len(data) > 0 {
		key, rest, err := cutText(data)
		if err != nil {
			return nil, err
		}
		if m[key], data, err = value(rest); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func cutText(data []byte) (string, []byte, error) {
	n, used := binary.Uvarint(data)
	if used <= 0 || n > uint64(len(data)-used) { //nolint:gosec // not negative
		return "", nil, errMap
	}
	end := used + int(n) //nolint:gosec // within data
	return string(data[used:end]), data[end:], nil
}

// uuid encodes an id; the zero id is NULL only where a column allows it.
func uuid(id machine.ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }
