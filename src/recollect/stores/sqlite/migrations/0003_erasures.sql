-- The ledger of erasures: who was to go, as a hash keyed by the store's salt, how far that has got, and the receipt.
-- `evidence` is keyed hashes of pieces of what was deleted, to look for them; `link` is the place in the chain.

drop table erasures;

create table erasures (
    id           text primary key,
    subject      text not null,
    parts        text not null,
    phase        text not null,
    requested_at integer not null,
    deleted_at   integer,
    erased       text not null default '{}',
    rederived    integer not null default 0,
    evidence     blob not null default x'',
    link         integer unique,
    receipt      text
) strict;

insert or ignore into meta (name, value) values ('salt', lower(hex(randomblob(32))));
