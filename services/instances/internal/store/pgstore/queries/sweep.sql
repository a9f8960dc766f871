-- What the sweeps of a shard ask, up to a few times a second; Tick, which sqlc cannot read, is in sweep.go. None takes a lock.

-- Due reads the front of tokens_due.
-- name: Due :many
select instance_id, id, fence, due_at from tokens where due_at <= @before order by due_at limit @lim;

-- Expired reads tokens_leased and sorts what is over.
-- name: Expired :many
select instance_id, id, fence, due_at from tokens
where state = 2 and lease_until <= clock_timestamp()
order by lease_until, id limit @lim;
