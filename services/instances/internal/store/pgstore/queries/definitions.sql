-- Definitions are few and written a few times a day. Every query but DefinitionsAfter goes by the primary key
-- (namespace, workflow, version); that one by the unique index on revision.

-- LockDefinitions lets one writer at a time decide and commit, so that revisions follow each other without a gap in the
-- order of their commits. It waits for writers and is no obstacle to readers. Nothing is locked before or after it.
-- name: LockDefinitions :exec
lock table definitions in share row exclusive mode;

-- name: InsertDefinition :execrows
insert into definitions (namespace, workflow, version, fingerprint, revision, registered_at, graph)
values (@namespace, @workflow, @version, @fingerprint, @revision, @registered_at, @graph)
on conflict do nothing;

-- RegisterDefinition takes the next revision. Under LockDefinitions.
-- name: RegisterDefinition :one
insert into definitions (namespace, workflow, version, fingerprint, revision, registered_at, graph)
values (@namespace, @workflow, @version, @fingerprint,
    coalesce((select d.revision from definitions d order by d.revision desc limit 1), 0) + 1, clock_timestamp(), @graph)
returning revision, registered_at;

-- name: DefinitionVersions :many
select * from definitions where namespace = @namespace and workflow = @workflow order by version;

-- name: DefinitionByVersion :one
select * from definitions where namespace = @namespace and workflow = @workflow and version = @version;

-- name: LatestDefinition :one
select * from definitions where namespace = @namespace and workflow = @workflow order by version desc limit 1;

-- name: DefinitionsAfter :many
select * from definitions
where revision > @after
  and (@namespace::text = '' or namespace = @namespace)
  and (@workflow::text = '' or workflow = @workflow)
order by revision
limit @lim;

-- name: Revision :one
select coalesce((select d.revision from definitions d order by d.revision desc limit 1), 0)::bigint as revision;
