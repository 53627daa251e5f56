-- What erasing needs. Neither table has a name or a text in it, so neither is cut by tenant.

-- How far each erasure has got; `link` is its place in the chain of receipts.
create table recollect.erasures (
    id           text collate "C" primary key,
    subject      text not null,
    parts        text not null,
    elsewhere    text not null default '{}',
    phase        text not null,
    requested_at bigint not null,
    deleted_at   bigint,
    erased       text not null default '{}',
    rederived    bigint not null default 0,
    evidence     bytea not null default '',
    receipt      text,
    link         bigint unique
);

-- Partitions that something was erased from, as long as copies of it may lie on the server's disk: by which transaction,
-- by which one their statistics were made anew, where the log ended when both was done, and up to which of its files
-- the log has to get. These numbers mean nothing on another server, so its identity is with them.
create table recollect.wiped (
    part     integer primary key,
    server   bigint not null,
    xid      xid8 not null,
    analysed xid8,
    ended    pg_lsn,
    upto     text
);

-- The key of the hashes by which a subject is known again.
insert into recollect.meta (name, value)
values ('salt', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''));
