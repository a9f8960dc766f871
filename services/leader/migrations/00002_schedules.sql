-- Why:   schedules and what became of them (EVT-8), on the home shard.
-- Locks: none on existing tables.
-- Time:  immediate.

-- +goose Up

-- One row for each schedule. What users change (schedule, paused) raises the revision; what the leader writes of its firing
-- is guarded by that and by the due time it was about.
create table schedules (
    namespace        text        collate "C" not null,
    id               text        collate "C" not null,
    revision         bigint      not null,
    -- When the leader has to look at it next: its next due time, a time to try again, or to ask after the instance that a
    -- queued due time waits for. Null: never, as things are.
    wake_at          timestamptz,
    -- The next due time. In the past where it has not been dealt with.
    next_at          timestamptz,
    queued_at        timestamptz,
    last_at          timestamptz,
    -- Since when it has its present times: no due time before counts.
    from_at          timestamptz not null,
    created_at       timestamptz not null,
    updated_at       timestamptz not null,
    fired            bigint      not null default 0,
    skipped          bigint      not null default 0,
    missed           bigint      not null default 0,
    paused           boolean     not null,
    workflow         text        collate "C" not null,
    last_instance_id text        not null default '',
    problem          text        not null default '',
    -- wiggle.v1.Schedule, with its input: up to a payload's limit, out of line.
    schedule         bytea       not null,
    primary key (namespace, id)
);

-- What is due, in the order in which it is due.
create index schedules_wake on schedules (wake_at, namespace, id) where wake_at is not null;

-- The term of the leader that fires. One that was replaced and does not know it yet records nothing.
create table schedule_firing (
    only_row boolean primary key default true check (only_row),
    term     bigint  not null
);
insert into schedule_firing (term) values (0);
