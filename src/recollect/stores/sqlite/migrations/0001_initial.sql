-- The whole shape of a store. A `place` is `space << 28 | seq`: rows of one space lie side by side on disk,
-- and a place alone says whose row it is. Times are microseconds since 1970, UTC.

create table meta (
    name  text primary key,
    value text not null
) strict, without rowid;

-- One owner's records of one tier. `rewrites` counts deletions and changed vectors: a cache that has seen the
-- same number only needs the rows that were added since.
create table spaces (
    id       integer primary key,
    tenant   text not null,
    tier     text not null,
    user     text not null,
    agent    text not null,
    session  text not null,
    next_seq integer not null default 0,
    rewrites integer not null default 0,
    items    integer not null default 0,
    words    integer not null default 0,
    unique (tenant, tier, user, agent, session)
) strict;

create table records (
    place         integer primary key,
    space         integer not null references spaces (id),
    id            text not null,
    version       integer not null,
    content       text not null,
    metadata      text not null,
    importance    real not null,
    access_count  integer not null default 0,
    last_accessed integer,
    created_at    integer not null,
    valid_from    integer,
    valid_to      integer,
    superseded_by text,
    expires_at    integer,
    source        text not null,
    trust         real not null,
    key           text,
    session       text,
    position      real,
    speaker       text,
    derived_from  text not null,
    by_user       text not null,
    by_agent      text not null,
    by_session    text,
    terms         text not null,
    length        integer not null,
    passages      integer not null
) strict;

create unique index records_id on records (space, id);
create index records_time on records (space, created_at, id);
create index records_key on records (space, key) where key is not null;
create index records_turn on records (space, session, position) where session is not null;
create index records_speaker on records (space, speaker) where speaker is not null;
create index records_length on records (place, length);
create index records_bounded on records (space, place)
    where valid_from is not null or valid_to is not null or expires_at is not null;

-- The metadata paths that a space has ever carried: what may be filtered by.
create table paths (
    space integer not null,
    path  text not null,
    primary key (space, path)
) strict, without rowid;

-- Two generations of vectors, so that another model can be prepared while the old one answers; `meta` says which
-- is which. An id is `place << 6 | part`; a vector is float16, normalised.
create table vectors_a (
    id   integer primary key,
    data blob not null
) strict;

create table vectors_b (
    id   integer primary key,
    data blob not null
) strict;

-- Every term begins with its space, so that one owner's words lie together and are counted alone.
create virtual table words using fts5 (
    terms,
    content = '',
    columnsize = 0,
    tokenize = "ascii tokenchars '_'"
);

-- Without this a deleted word stays readable in the index until a merge happens to pass.
insert into words (words, rank) values ('secure-delete', 1);

create virtual table occurrences using fts5vocab ('words', 'instance');

create table entries (
    place      integer primary key,
    space      integer not null references spaces (id),
    id         text not null,
    kind       text not null,
    content    text not null,
    metadata   text not null,
    importance real not null,
    at         integer not null,
    expires_at integer
) strict;

create unique index entries_id on entries (space, id);
create index entries_expiry on entries (expires_at) where expires_at is not null;

create table tasks (
    space      integer not null references spaces (id),
    id         text not null,
    status     text not null,
    version    integer not null,
    fence      integer not null,
    owner      text,
    renewed_at integer,
    lease_ttl  integer,
    plan_hash  text,
    ttl        integer,
    expires_at integer,
    created_at integer not null,
    updated_at integer not null,
    primary key (space, id)
) strict, without rowid;

create index tasks_status on tasks (space, status, id);
create index tasks_expiry on tasks (expires_at) where expires_at is not null;

create table checkpoints (
    space   integer not null,
    task    text not null,
    version integer not null,
    fence   integer not null,
    schema  integer not null,
    state   text not null,
    sha256  blob not null,
    at      integer not null,
    unique (space, task, version)
) strict;

create table steps (
    space           integer not null,
    task            text not null,
    key             text not null,
    status          text not null,
    attempts        integer not null,
    fence           integer not null,
    idempotency_key text not null,
    input_sha       text,
    result          text,
    error           text,
    first_at        integer not null,
    at              integer not null,
    unique (space, task, key)
) strict;

-- What was erased, when and how far it got; holds hashes and counts, never the subject.
create table erasures (
    id           integer primary key,
    subject      blob not null,
    phase        text not null,
    requested_at integer not null,
    completed_at integer,
    counts       text not null,
    previous     blob,
    receipt      text
) strict;
