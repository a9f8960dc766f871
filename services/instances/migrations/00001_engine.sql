-- Why:   the first tables of a shard: definitions, instances, their tokens, their history, the lease of the sweeps.
-- Locks: none on existing tables.
-- Time:  immediate.
--
-- Text that is compared is collated "C": names are compared by their bytes, so that an index gives one order whatever
-- the server's locale is, and comparing is cheap. No table refers to another by a foreign key: the engine writes them
-- in one transaction under the instance's lock, and checking would cost a lookup and a row lock for each token.

-- +goose Up

-- Read by key and by revision, written a few times a day.
create table definitions (
    revision      bigint      not null unique,
    registered_at timestamptz not null,
    version       integer     not null check (version > 0),
    namespace     text        collate "C" not null,
    workflow      text        collate "C" not null,
    fingerprint   bytea       not null,
    graph         bytea       not null,
    primary key (namespace, workflow, version)
);

-- One row for each instance, for as long as it is retained. It is written twice, at the start and at the end: what changes
-- in between is in its tokens. So the end may change an indexed column (state), and two indexes that lead with the state
-- serve everything: lists of one state, lists of all (merged from the few states), and counts without reading the table.
-- The id, which decides among instances of one batch and so of one time, is in neither: an index that holds it further
-- back is as good as the primary key while the table is empty, and a plan made then would read all of that index later.
create table instances (
    id           uuid        primary key,
    created_at   timestamptz not null,
    ended_at     timestamptz,
    version      integer     not null,
    position     integer     not null,
    state        smallint    not null,
    priority     smallint    not null,
    namespace    text        collate "C" not null,
    workflow     text        collate "C" not null,
    context_type text        not null default '',
    trace        bytea,
    failure      bytea,
    context      bytea
) with (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
create index instances_by_state on instances (namespace, state, created_at desc);
create index instances_by_workflow on instances (namespace, workflow, state, created_at desc);

-- The points of execution of live instances: small and hot. What changes with each heartbeat or each step in place
-- (lease_until, view, node, attempt, fence, position, ...) is in no index, so that such an update stays within its page
-- (HOT); half of each page is left for that. Payloads are not compressed: they are rewritten with each step, and
-- compressing costs more than the space that a small table saves.
-- Vacuum runs often and without pauses, and never tries to shorten the table, which would need an exclusive lock.
create table tokens (
    id               uuid        primary key,
    instance_id      uuid        not null,
    parent_id        uuid,
    fence            bigint      not null,
    settled_fence    bigint      not null,
    timeout_us       bigint      not null,
    due_at           timestamptz,
    queued_at        timestamptz,
    leased_at        timestamptz,
    lease_until      timestamptz,
    deadline         timestamptz,
    settled_retry_at timestamptz,
    idx              integer     not null,
    attempt          integer     not null,
    version          integer     not null,
    width            integer     not null,
    pending          integer     not null,
    next_idx         integer     not null,
    position         integer     not null,
    state            smallint    not null,
    priority         smallint    not null,
    settled_by       smallint    not null,
    held             boolean     not null,
    has_result       boolean     not null,
    namespace        text        collate "C" not null,
    workflow         text        collate "C" not null,
    queue            text        collate "C" not null,
    node             text        collate "C" not null,
    key              text        collate "C" not null,
    worker           text        collate "C" not null,
    view_type        text        not null,
    progress_type    text        not null,
    loops            bytea,
    failure          bytea,
    progress         bytea,
    view             bytea
) with (
    fillfactor = 50,
    vacuum_truncate = false,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    toast.vacuum_truncate = false,
    toast.autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_cost_delay = 0
);
alter table tokens
    alter column view set storage external,
    alter column progress set storage external,
    alter column failure set storage external;

-- State 1 is READY, 2 is LEASED (machine.TokenState).
create index tokens_ready on tokens (namespace, queue, priority desc, instance_id, id) where state = 1 and due_at is null;
create index tokens_due on tokens (due_at) where due_at is not null;
create index tokens_leased on tokens (id) where state = 2;
create index tokens_of_instance on tokens (instance_id);
create index tokens_children on tokens (parent_id, idx) where parent_id is not null;

-- What happened, append-only; the engine reads it only to know a call that it answered before. token_id is the zero uuid
-- for what happened to the instance itself.
create table history (
    instance_id uuid        not null,
    token_id    uuid        not null,
    recorded_at timestamptz not null,
    fence       bigint,
    position    integer     not null,
    ord         integer     not null,
    settled_by  smallint    not null,
    entry       bytea       not null,
    primary key (instance_id, token_id, position)
);

-- Who sweeps the shard. A row, not a session's lock, so that a pooler in transaction mode works.
create table sweep_lease (
    only_row boolean     primary key default true check (only_row),
    holder   text        not null,
    term     bigint      not null,
    until    timestamptz not null
) with (fillfactor = 50);
insert into sweep_lease (holder, term, until) values ('', 0, '-infinity');

-- What is written once and kept long is worth compressing, with lz4 where the server has it: PostgreSQL's own method costs
-- several times as much.
-- +goose StatementBegin
do $$
begin
    alter table history alter column entry set compression lz4;
    alter table instances alter column context set compression lz4;
exception when feature_not_supported then
    raise notice 'this server has no lz4; history and results are compressed with pglz';
end
$$;
-- +goose StatementEnd
