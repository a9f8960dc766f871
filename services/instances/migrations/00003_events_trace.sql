-- Why:   an event goes on with the trace of what it tells of (OPS-10): it holds the span that wrote it. Only where that is
--        sampled; else it is null, which takes no room.
-- Locks: access exclusive on events, for as long as it takes to change the catalogue; it waits for transactions that use
--        the table.
-- Time:  immediate, whatever the table holds: a column without a default writes no row.

-- +goose Up

-- W3C traceparent.
alter table events add column trace text;
