-- The whole shape of a store. Every table but `meta` is cut into partitions by its tenant, and every row carries the
-- tenant, so that a statement for one tenant reads one partition. A `place` counts the rows of one space.
-- Times are microseconds since 1970, UTC. A `handle` is a name that fits into an index, whatever its length.

create table recollect.meta (
    name  text collate "C" primary key,
    value text not null
);

create sequence recollect.space_ids;
create sequence recollect.step_order;

-- One owner's records, log or tasks of one tier.
create table recollect.spaces (
    tenant   text collate "C" not null,
    id       bigint not null default nextval('recollect.space_ids'),
    handle   text collate "C" not null,
    tier     text collate "C" not null,
    owner    text collate "C" not null,
    agent    text collate "C" not null,
    session  text collate "C" not null,
    next_seq bigint not null default 0,
    items    bigint not null default 0,
    words    bigint not null default 0,
    primary key (tenant, id),
    unique (tenant, handle)
) partition by hash (tenant);

create table recollect.records (
    tenant        text collate "C" not null,
    space         bigint not null,
    place         bigint not null,
    handle        text collate "C" not null,
    id            text collate "C" not null,
    version       bigint not null,
    access_count  bigint not null,
    last_accessed bigint,
    content       text not null,
    metadata      text not null,
    importance    double precision not null,
    created_at    bigint not null,
    valid_from    bigint,
    valid_to      bigint,
    superseded_by text collate "C",
    expires_at    bigint,
    source        text collate "C" not null,
    trust         double precision not null,
    key           text collate "C",
    key_handle    text collate "C",
    session       text collate "C",
    session_handle text collate "C",
    position      double precision,
    speaker       text collate "C",
    derived_from  text not null,
    by_user       text collate "C" not null,
    by_agent      text collate "C" not null,
    by_session    text collate "C",
    pinned        boolean not null,
    decayed_at    bigint,
    learned_at    bigint,
    terms         text not null,
    length        integer not null,
    passages      integer not null,
    primary key (tenant, space, place),
    unique (tenant, space, handle)
) partition by hash (tenant);

create index on recollect.records (space, created_at);
create index on recollect.records (space, key_handle) where key_handle is not null;
create index on recollect.records (space, session_handle, position) where session_handle is not null;
create index on recollect.records (space, speaker) where speaker is not null;
create index on recollect.records (space, place)
    where valid_from is not null or valid_to is not null or expires_at is not null;

-- The metadata paths that a space has ever carried: what may be filtered by.
create table recollect.paths (
    tenant text collate "C" not null,
    space  bigint not null,
    handle text collate "C" not null,
    path   text collate "C" not null,
    primary key (tenant, space, handle)
) partition by hash (tenant);

-- Two generations of vectors, so that another model can be prepared while the old one answers; `meta` says which is
-- which. A vector is normalised, and its dimensions are those of its generation's model.
create table recollect.vectors (
    tenant     text collate "C" not null,
    space      bigint not null,
    generation "char" not null,
    place      bigint not null,
    part       smallint not null,
    data       halfvec not null,
    primary key (tenant, space, generation, place, part)
) partition by hash (tenant);

-- Which items hold a word, how often, and of how many words: what BM25 counts, within one space alone. All of it is in
-- the index, so that a search by words reads nothing else.
create table recollect.postings (
    tenant text collate "C" not null,
    space  bigint not null,
    term   text collate "C" not null,
    place  bigint not null,
    count  integer not null,
    length integer not null,
    primary key (tenant, space, term, place) include (count, length)
) partition by hash (tenant);

create index on recollect.postings (space, place);

create table recollect.entries (
    tenant     text collate "C" not null,
    space      bigint not null,
    seq        bigint not null,
    handle     text collate "C" not null,
    id         text collate "C" not null,
    kind       text collate "C" not null,
    content    text not null,
    metadata   text not null,
    importance double precision not null,
    at         bigint not null,
    expires_at bigint,
    primary key (tenant, space, seq)
) partition by hash (tenant);

create index on recollect.entries (space, handle);

create table recollect.tasks (
    tenant     text collate "C" not null,
    space      bigint not null,
    handle     text collate "C" not null,
    id         text collate "C" not null,
    status     text collate "C" not null,
    version    bigint not null,
    fence      bigint not null,
    owner      text collate "C",
    renewed_at bigint,
    lease_ttl  bigint,
    plan_hash  text,
    ttl        bigint,
    expires_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (tenant, space, handle)
) partition by hash (tenant);

create index on recollect.tasks (space, expires_at) where expires_at is not null;

-- A state is kept as bytes: damage may leave some that are no text, and that is told, not raised.
create table recollect.checkpoints (
    tenant  text collate "C" not null,
    space   bigint not null,
    task    text collate "C" not null,
    version bigint not null,
    fence   bigint not null,
    schema  bigint not null,
    state   bytea not null,
    sha256  bytea not null,
    at      bigint not null,
    primary key (tenant, space, task, version)
) partition by hash (tenant);

create table recollect.steps (
    tenant          text collate "C" not null,
    space           bigint not null,
    task            text collate "C" not null,
    handle          text collate "C" not null,
    key             text collate "C" not null,
    first           bigint not null default nextval('recollect.step_order'),
    status          text collate "C" not null,
    attempts        bigint not null,
    fence           bigint not null,
    idempotency_key text not null,
    input_sha       text,
    result          text,
    error           text,
    at              bigint not null,
    primary key (tenant, space, task, handle)
) partition by hash (tenant);

-- Every statement names its tenant. Should one ever forget to, these policies answer with nothing: a transaction
-- sees the tenant that it has said it is about, and all of them only where it has said that. The owner of the tables
-- is held to it as well. Where many rows are read the tenant is asked for in a query of its own, once a statement and
-- not once a row. Not elsewhere: under a generic plan (seen in PostgreSQL 18.4) an update that has waited for another
-- of the same row then finds that row no more. Whoever changes rows of these three has them planned anew.
do $$
declare
    kept text;
begin
    foreach kept in array array[
        'spaces', 'records', 'paths', 'vectors', 'postings', 'entries', 'tasks', 'checkpoints', 'steps'
    ]
    loop
        execute format('alter table recollect.%I enable row level security', kept);
        execute format('alter table recollect.%I force row level security', kept);
        execute format(
            $policy$
                create policy of_one_tenant on recollect.%1$I
                using (
                    tenant = %2$s
                    or current_setting('recollect.everyone', true) = 'on'
                )
            $policy$,
            kept,
            case
                when kept in ('records', 'vectors', 'postings') then '(select current_setting(''recollect.tenant'', true))'
                else 'current_setting(''recollect.tenant'', true)'
            end
        );
        for part in 0..15 loop
            execute format(
                'create table recollect.%I partition of recollect.%I for values with (modulus 16, remainder %s)',
                kept || '_' || part, kept, part
            );
            -- Nobody reads a partition past its table.
            execute format('alter table recollect.%I enable row level security', kept || '_' || part);
            execute format('alter table recollect.%I force row level security', kept || '_' || part);
        end loop;
    end loop;
    -- A vector of many dimensions stays in its row: to fetch each from another table would double the time of a scan.
    for part in 0..15 loop
        execute format('alter table recollect.%I set (toast_tuple_target = 8160)', 'vectors_' || part);
    end loop;
end
$$;
