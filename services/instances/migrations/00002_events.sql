-- Why:   the event log of the shard (EVT-1 to 6), who follows it, and how far NATS has it.
-- Locks: none on existing tables.
-- Time:  immediate.
--
-- The sequence must not cache: a session that holds numbers in reserve would write small ones late, and readers
-- (pkg/postgres/eventlog) rely on a number being taken in the transaction that writes it, after its first lock.

-- +goose Up

create sequence events_seq as bigint cache 1;

-- Append-only; read and trimmed by its key. One or two rows for each instance, and what handlers emit.
create table events (
    seq         bigint      primary key default nextval('events_seq'),
    recorded_at timestamptz not null,
    instance_id uuid        not null,
    revision    integer     not null,
    version     integer     not null,
    namespace   text        collate "C" not null,
    workflow    text        collate "C" not null,
    type        text        collate "C" not null,
    node        text        collate "C" not null,
    key         text        collate "C" not null,
    payload     bytea
) with (
    vacuum_truncate = false,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
alter sequence events_seq owned by events.seq;

-- How far each consumer of PollEvents is on this shard. The log is kept for it, within a hard cap.
create table event_consumers (
    consumer   text        collate "C" primary key,
    seq        bigint      not null,
    created_at timestamptz not null default now(),
    acked_at   timestamptz not null default now()
) with (fillfactor = 50);

-- How far NATS has the log, and which making of the stream that is about. Written under the leader's term: a leader that
-- was replaced and does not know it yet changes nothing.
create table event_relay (
    only_row   boolean     primary key default true check (only_row),
    term       bigint      not null,
    seq        bigint      not null,
    stream     text        not null,
    relayed_at timestamptz not null default now()
) with (fillfactor = 50);
insert into event_relay (term, seq, stream) values (0, 0, '');
