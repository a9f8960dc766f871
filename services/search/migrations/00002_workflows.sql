-- Why:   which workflows of a namespace have documents, for callers whose permission names beginnings of workflows (SRC-6). Few
--        values stand in it many times, so it is small.
-- Locks: documents, against writes, while the index is built. Events wait in NATS meanwhile, and searches go on.
-- Time:  about a second for a million documents.

-- +goose Up

create index documents_of_workflow on documents (namespace, workflow);
