-- Reads; those with a filter or a choice of columns are in list.go and read.go. None takes a lock.

-- Instance goes by the primary keys of instances and, for the context of one that runs, of tokens; the count reads
-- tokens_of_instance.
-- name: Instance :one
select sqlc.embed(i), (root.id is not null)::boolean as live, root.view, coalesce(root.view_type, '')::text as view_type,
    (select count(*) from tokens t where t.instance_id = i.id and t.state not in (6, 7, 8)) as active
from instances i left join tokens root on root.id = i.id
where i.id = @id;

-- Ended goes by the primary key of instances once for each id. State 1 is RUNNING.
-- name: Ended :many
select asked.id::uuid as id
from unnest(@ids::uuid[]) asked(id)
left join lateral (select i.state from instances i where i.id = asked.id limit 1) i on true
where i.state is distinct from 1;

-- History reads one instance's part of the primary key (instance_id, token_id, position) and sorts it.
-- name: History :many
select recorded_at, ord, token_id, position, entry from history
where instance_id = @instance
  and (recorded_at, ord, token_id, position) > (@recorded_at::timestamptz, @ord::integer, @token::uuid, @position::integer)
order by recorded_at, ord, token_id, position
limit @lim;
