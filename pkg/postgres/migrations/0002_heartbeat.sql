-- Why:   how far replicas lag is read from a row that the leader writes once a second (REP-1). It works on a database where
--        nothing else happens.
-- Locks: none on existing tables.
-- Time:  immediate.

create table wiggle_heartbeat (
    only_row  boolean     primary key default true check (only_row),
    -- Rises with each beat, under any leader.
    beat      bigint      not null,
    -- By this database's clock.
    beaten_at timestamptz not null,
    -- The leader's term. A leader that was replaced changes nothing.
    term      bigint      not null
) with (fillfactor = 50);
insert into wiggle_heartbeat (beat, beaten_at, term) values (0, clock_timestamp(), 0);
