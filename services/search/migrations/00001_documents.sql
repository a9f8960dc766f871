-- Why:   the documents of a search shard: what the instances say, to be found by words and filters (SRC-2, SRC-3).
-- Locks: none on existing tables.
-- Time:  immediate.
--
-- A search visits the rows that an index names, so the rows are narrow: the text, which only the hits of a page need, lies in
-- a table of its own. There is one index for all that a search may ask for by equality. Beside the words of the text, words
-- holds one lexeme for the workflow, the state and each value of the context; these begin with '=', which no parser
-- of text gives, so that they are not found by words (package document). Words and conditions are met in the index together.

-- +goose Up

create table documents (
    created_at timestamptz not null,
    ended_at   timestamptz,
    indexed_at timestamptz not null default now(),
    -- What the document was made of, as a hash: what comes again is not written again.
    content    bigint      not null,
    -- Shard and ulid of the instance, which are its id.
    id         uuid        not null,
    shard      integer     not null,
    -- The instance's. An older document never replaces a newer one.
    revision   integer     not null,
    version    integer     not null,
    state      smallint    not null,
    priority   smallint    not null,
    namespace  text        collate "C" not null,
    workflow   text        collate "C" not null,
    -- The numbers of the context by JSON Pointer, for ranges.
    numbers    jsonb,
    words      tsvector    not null,
    primary key (shard, id)
) with (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Lists, newest first, and the walk from the newest on that finds words which many documents have. With what it includes
-- it counts by workflow and state without the table.
create index documents_newest on documents (namespace, created_at desc, id desc) include (workflow, state);

-- New entries are gathered and brought in together, 2 MiB at a time: a document has many words, and bringing in each by itself
-- costs several times as much. Every search reads what is gathered, so it is not more.
create index documents_words on documents using gin (words) with (fastupdate = on, gin_pending_list_limit = 2048);

-- How often a word is decides how a search goes; so more words are counted than by default.
alter table documents alter column words set statistics 400;

create table document_texts (
    id      uuid    not null,
    shard   integer not null,
    text    text    not null,
    failure text    not null,
    primary key (shard, id)
) with (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- +goose StatementBegin
do $$
begin
    alter table document_texts alter column text set compression lz4;
    alter table documents alter column words set compression lz4;
exception when feature_not_supported then
    raise notice 'this server has no lz4; texts are compressed with pglz';
end
$$;
-- +goose StatementEnd
