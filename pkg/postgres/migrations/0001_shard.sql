-- Why:   each database knows which shard of which cluster it is, so that a wrong connection string in a topology is refused
--        before anything is written (SHD-13).
-- Locks: none on existing tables.
-- Time:  immediate.

create table wiggle_shard (
    -- At most one row: the key has one possible value.
    only_row   boolean     primary key default true check (only_row),
    shard_id   integer     not null check (shard_id >= 0),
    cluster_id text        not null check (cluster_id <> ''),
    claimed_at timestamptz not null default now()
);
