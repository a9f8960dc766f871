-- Why:   the registry of every shard id ever used (SHD-21), which a topology is held against when a process starts (SHD-13).
-- Locks: none on existing tables.
-- Time:  immediate.

-- +goose Up

create table shard_registry (
    shard_id   integer     primary key check (shard_id >= 0),
    state      text        collate "C" not null check (state in ('active', 'draining', 'retired')),
    first_seen timestamptz not null default now(),
    changed_at timestamptz not null default now()
);
