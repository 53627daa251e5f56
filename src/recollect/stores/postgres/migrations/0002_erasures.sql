-- The ledger of erasures. Neither table contains a name or a text, so neither is partitioned by tenant.

-- The phase of each erasure; `link` is its number in the chain of receipts.
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

-- Partitions with erased data of which copies may be left on the server's disk: the transaction that erased it, the one
-- that renewed the statistics, the WAL position after the cleanup, and the WAL file after which no old file is left.
-- These numbers mean nothing on another server, so the server's identity is stored too.
create table recollect.wiped (
    part     integer primary key,
    server   bigint not null,
    xid      xid8 not null,
    analysed xid8,
    ended    pg_lsn,
    upto     text
);

-- The key of the hashes of subjects.
insert into recollect.meta (name, value)
values ('salt', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''));
