-- Why:   a step is linked to what made it ready, also hours later (OPS-10): a token holds the span that brought it where it
--        is. Only where its instance is sampled; else it is null, which takes no room.
-- Locks: access exclusive on tokens, for as long as it takes to change the catalogue; it waits for transactions that use
--        the table.
-- Time:  immediate, whatever the table holds: a column without a default writes no row.

-- +goose Up

-- W3C traceparent.
alter table tokens add column trace text;
