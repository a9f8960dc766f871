-- The tables of the limit (PRF-6), in a database of their own. A stands for tokens, B for history. The index of each is its
-- primary key. Rows of A are updated by key, each connection those of its own range, so no statement waits for another.
create table a (
    id   bigint      primary key,
    data text        not null,
    step bigint      not null,
    at   timestamptz not null
) with (fillfactor = 50);

create table b (
    id   bigint      not null,
    step bigint      not null,
    data text        not null,
    at   timestamptz not null,
    primary key (id, step)
);
