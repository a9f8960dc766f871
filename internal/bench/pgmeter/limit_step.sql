-- As many steps as the arrays are long, in one statement and so in one transaction: one row of A updated by its key, one
-- row of B inserted.
with moved as (
    update a set step = a.step + 1, data = v.data, at = now()
    from unnest($1::bigint[], $2::text[]) as v (id, data)
    where a.id = v.id
    returning a.id, a.step, a.data
)
insert into b (id, step, data, at)
select id, step, data, now() from moved
