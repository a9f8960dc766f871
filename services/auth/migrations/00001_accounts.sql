-- Why:   accounts, roles, sessions, API keys and the audit log (AUT-1), on the auth shard.
-- Locks: none on existing tables.
-- Time:  immediate.

-- +goose Up

-- The revision of everything that caches know, and the lock of whoever changes it: each change locks this row first, so
-- changes follow each other, see each other, and are numbered without gaps in the order of their commits.
create table auth_state (
    only_row boolean primary key default true check (only_row),
    revision bigint  not null default 0,
    -- By which limits of tries are mapped to their slots, so that nobody can know whose slot he shares.
    seed     bigint  not null default floor(random() * 9e18)::bigint
);
insert into auth_state default values;

-- What changed with a revision, for caches (AUT-5). The latest are kept.
create table auth_changes (
    revision       bigint  primary key,
    everything     boolean not null,
    credential_ids text[]  not null,
    accounts       text[]  not null
);

create table accounts (
    id           bigint      generated always as identity primary key,
    created_at   timestamptz not null,
    signed_in_at timestamptz,
    disabled     boolean     not null,
    -- The name in lower case.
    key          text        collate "C" not null unique,
    name         text        collate "C" not null,
    roles        text[]      not null
);

-- Whether an administrator is left.
create index accounts_by_role on accounts using gin (roles);

-- By what an account proves itself. A password's hash is one kind; what another program vouches for may become another.
create table credentials (
    account_id bigint      not null references accounts on delete cascade,
    changed_at timestamptz not null,
    kind       text        collate "C" not null check (kind in ('password')),
    secret     text        not null,
    primary key (account_id, kind)
);

create table roles (
    name        text   collate "C" primary key,
    description text   not null,
    permissions text[] not null
);

create table sessions (
    id         text        collate "C" primary key,
    account_id bigint      not null references accounts on delete cascade,
    created_at timestamptz not null,
    used_at    timestamptz not null,
    expires_at timestamptz not null,
    secret     bytea       not null,
    address    text        not null,
    user_agent text        not null
) with (fillfactor = 80);

create index sessions_of_account on sessions (account_id, created_at desc);

create table keys (
    id                  text        collate "C" primary key,
    -- The account whose key it is, directly or through another of its keys. It goes with it.
    owner_id            bigint      references accounts on delete cascade,
    created_at          timestamptz not null,
    expires_at          timestamptz,
    used_at             timestamptz,
    old_secret_until    timestamptz,
    -- Null for a key that is a certificate.
    secret              bytea,
    old_secret          bytea,
    certificate_subject text        collate "C" unique,
    name                text        collate "C" not null unique,
    created_by          text        not null,
    roles               text[]      not null,
    permissions         text[]      not null,
    check ((secret is null) <> (certificate_subject is null))
) with (fillfactor = 80);

create index keys_of_owner on keys (owner_id) where owner_id is not null;

-- The one-time token by which the first administrator is made (AUT-7).
create table setup_token (
    only_row   boolean     primary key default true check (only_row),
    expires_at timestamptz not null,
    used_at    timestamptz,
    id         text        not null,
    secret     bytea       not null
);

-- Limits of tries to sign in, shared by all processes (AUT-7): when a slot's whole burst is there again. Slots are numbered by
-- a hash, so their number is bounded whatever names and addresses are tried; who shares one shares its limit.
create table sign_in_attempts (
    slot    integer     not null,
    kind    smallint    not null,
    full_at timestamptz not null,
    primary key (slot, kind)
) with (fillfactor = 70);

create index sign_in_attempts_full on sign_in_attempts (full_at);

-- Whence an account has signed in: from there it is not locked out by others' tries.
create table sign_in_origins (
    account_id bigint      not null references accounts on delete cascade,
    seen_at    timestamptz not null,
    origin     text        collate "C" not null,
    primary key (account_id, origin)
);

create index sign_in_origins_seen on sign_in_origins (seen_at);

-- The end of the audit log. Whoever appends locks this row, last of all; so numbers have no gaps and times do not go back.
create table audit_head (
    only_row boolean     primary key default true check (only_row),
    seq      bigint      not null default 0,
    at       timestamptz not null default '-infinity'
);
insert into audit_head default values;

create table audit (
    seq       bigint      primary key,
    at        timestamptz not null,
    allowed   boolean     not null,
    principal text        collate "C" not null,
    address   text        collate "C" not null,
    action    text        collate "C" not null,
    target    text        collate "C" not null,
    detail    text        not null,
    trace_id  text        not null,
    -- Names, addresses and ids fall apart at their marks, so that each part of them is found.
    words     tsvector    not null generated always as (to_tsvector('simple',
        translate(principal || ' ' || address || ' ' || action || ' ' || target || ' ' || detail, '/.:@_+-', '       '))) stored
);

create index audit_at on audit (at desc, seq desc);
create index audit_by_principal on audit (principal, seq desc);
create index audit_by_action on audit (action, seq desc);
create index audit_by_target on audit (target, seq desc);
create index audit_denied on audit (seq desc) where not allowed;
create index audit_words on audit using gin (words);

-- The log is only appended to (AUT-8). Retention alone removes entries, from its old end: it names the time before which it does so for
-- its transaction, and records that it did.
-- +goose StatementBegin
create function audit_only_appended() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' and old.at < nullif(current_setting('wiggle.audit_retention', true), '')::timestamptz then
        return old;
    end if;
    raise exception 'the audit log is only appended to' using errcode = 'insufficient_privilege';
end
$$;
-- +goose StatementEnd

create trigger audit_only_appended before update or delete on audit for each row execute function audit_only_appended();
create trigger audit_not_truncated before truncate on audit for each statement execute function audit_only_appended();
