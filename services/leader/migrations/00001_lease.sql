-- Why:   who leads the cluster: a lease, on the home shard only.
-- Locks: none on existing tables.
-- Time:  immediate.
--
-- A row, not a session's lock, so that a pooler in transaction mode works. It is written once a second by the leader; other
-- processes only read it while the lease lasts.

create table leader_lease (
    only_row boolean     primary key default true check (only_row),
    -- Rises with each taking, so that what an earlier leader still writes can be told.
    term     bigint      not null,
    -- The process, by a name that no other ever had. Empty: it was given back.
    holder   text        not null,
    -- By this database's clock.
    until    timestamptz not null
) with (fillfactor = 50);
insert into leader_lease (term, holder, until) values (0, '', '-infinity');
