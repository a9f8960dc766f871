package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// instanceSubjects goes by the primary key once for each id. It takes no lock.
const instanceSubjects = `select u.ord, i.namespace, i.workflow
from unnest($1::uuid[]) with ordinality u(id, ord)
cross join lateral (select i.namespace, i.workflow from instances i where i.id = u.id limit 1) i`

// taskSteps goes by the primary keys of tokens, history (from the end of the token's part) and instances, once for each
// task. It takes no lock. State 2 is LEASED. Which instance it is the token says, if it is there: a lease is only what a
// caller says.
const taskSteps = `select u.ord, i.namespace, i.workflow, i.version, t.id is not null, coalesce(t.queue, ''),
	coalesce(u.fence = 0 or t.state = 2 and t.fence = u.fence, false), h.entry
from unnest($1::uuid[], $2::uuid[], $3::bigint[]) with ordinality u(token_id, instance_id, fence, ord)
left join lateral (select t.id, t.instance_id, t.queue, t.state, t.fence from tokens t where t.id = u.token_id limit 1) t on true
cross join lateral (select i.namespace, i.workflow, i.version from instances i
	where i.id = coalesce(t.instance_id, u.instance_id) limit 1) i
left join lateral (select h.entry from history h where h.instance_id = coalesce(t.instance_id, u.instance_id)
	and h.token_id = u.token_id and h.settled_by <> 0 and (u.fence = 0 or h.fence = u.fence) order by h.position desc limit 1) h on true`

// InstanceSubjects implements [store.Subjects].
func (s *Store) InstanceSubjects(ctx context.Context, ids []machine.ID) ([]store.Subject, error) {
	done, err := s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	subjects := make([]store.Subject, len(ids))
	rows, err := s.pool.Query(ctx, instanceSubjects, ids)
	_, err = collect(rows, err, func(rows pgx.Rows) (ord int, err error) {
		var found store.Subject
		if err := rows.Scan(&ord, &found.Namespace, &found.Workflow); err != nil {
			return 0, err
		}
		subjects[ord-1] = found
		return ord, nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for instances: %w", err)
	}
	return subjects, nil
}

// TaskSteps implements [store.Subjects].
func (s *Store) TaskSteps(ctx context.Context, tasks []store.Lease) ([]store.TaskStep, error) {
	done, err := s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	tokens, instances, fences := make([]machine.ID, len(tasks)), make([]machine.ID, len(tasks)), make([]int64, len(tasks))
	for i, task := range tasks {
		tokens[i], instances[i], fences[i] = task.Token, task.Instance, task.Fence
	}
	steps := make([]store.TaskStep, len(tasks))
	rows, err := s.pool.Query(ctx, taskSteps, tokens, instances, fences)
	_, err = collect(rows, err, func(rows pgx.Rows) (ord int, err error) {
		var step store.TaskStep
		var row, current bool
		var text []byte
		if err := rows.Scan(&ord, &step.Namespace, &step.Workflow, &step.Version, &row, &step.Queue, &current, &text); err != nil {
			return 0, err
		}
		entry := &wigglev1.HistoryEntry{}
		if err := proto.Unmarshal(text, entry); err != nil {
			return 0, fmt.Errorf("read history entry: %w", err)
		}
		steps[ord-1] = store.StepOf(step, row, current, entry.GetNode())
		return ord, nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for tasks: %w", err)
	}
	return steps, nil
}
