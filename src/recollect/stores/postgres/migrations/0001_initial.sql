-- The schema of a store. Every table but `meta` is partitioned by tenant, and every row has its tenant, so that a
-- statement for one tenant reads one partition. A `place` numbers the rows of a space.
-- Times are microseconds since 1970, UTC. A `handle` is a unique name of bounded length that fits into an index.

create table recollect.meta (name text collate "C" primary key, value text not null);

create sequence recollect.space_ids;
create sequence recollect.step_order;

-- The records, log or tasks of one owner in one tier.
create table recollect.spaces (
    tenant text collate "C" not null, id bigint not null default nextval('recollect.space_ids'),
    handle text collate "C" not null,
    tier text collate "C" not null, owner text collate "C" not null, agent text collate "C" not null,
    session text collate "C" not null,
    next_seq bigint not null default 0, items bigint not null default 0, words bigint not null default 0,
    primary key (tenant, id),
    unique (tenant, handle)
) partition by hash (tenant);

create table recollect.records (
    tenant text collate "C" not null, space bigint not null, place bigint not null, handle text collate "C" not null,
    id text collate "C" not null, version bigint not null, access_count bigint not null, last_accessed bigint,
    content text not null, metadata text not null, importance double precision not null,
    created_at bigint not null, valid_from bigint, valid_to bigint, superseded_by text collate "C", expires_at bigint,
    source text collate "C" not null, trust double precision not null,
    key text collate "C", key_handle text collate "C",
    session text collate "C", session_handle text collate "C", position double precision, speaker text collate "C",
    derived_from text not null,
    by_user text collate "C" not null, by_agent text collate "C" not null, by_session text collate "C",
    pinned boolean not null, decayed_at bigint, learned_at bigint,
    terms text not null, length integer not null, passages integer not null,
    primary key (tenant, space, place),
    unique (tenant, space, handle)
) partition by hash (tenant);

create index on recollect.records (space, created_at);
create index on recollect.records (space, key_handle) where key_handle is not null;
create index on recollect.records (space, session_handle, position) where session_handle is not null;
create index on recollect.records (space, speaker) where speaker is not null;
create index on recollect.records (space, place)
    where valid_from is not null or valid_to is not null or expires_at is not null;

-- The metadata paths of a space's items, by which they can be filtered.
create table recollect.paths (
    tenant text collate "C" not null, space bigint not null,
    handle text collate "C" not null, path text collate "C" not null,
    primary key (tenant, space, handle)
) partition by hash (tenant);

-- Two generations of vectors, so that another model can be prepared while the old one is searched; `meta` names both
-- models. A vector is normalized, and has the dimensions of its generation's model.
create table recollect.vectors (
    tenant text collate "C" not null, space bigint not null, generation "char" not null, place bigint not null,
    part smallint not null, data halfvec not null,
    primary key (tenant, space, generation, place, part)
) partition by hash (tenant);

-- The items of a space that contain a term, with its count and the length of the item, for BM25. The index covers all
-- columns, so that a search by terms reads nothing else.
create table recollect.postings (
    tenant text collate "C" not null, space bigint not null, term text collate "C" not null, place bigint not null,
    count integer not null, length integer not null,
    primary key (tenant, space, term, place) include (count, length)
) partition by hash (tenant);

create index on recollect.postings (space, place);

create table recollect.entries (
    tenant text collate "C" not null, space bigint not null, seq bigint not null, handle text collate "C" not null,
    id text collate "C" not null, kind text collate "C" not null, content text not null, metadata text not null,
    importance double precision not null, at bigint not null, expires_at bigint,
    primary key (tenant, space, seq)
) partition by hash (tenant);

create index on recollect.entries (space, handle);

create table recollect.tasks (
    tenant text collate "C" not null, space bigint not null, handle text collate "C" not null,
    id text collate "C" not null, status text collate "C" not null, version bigint not null, fence bigint not null,
    owner text collate "C", renewed_at bigint, lease_ttl bigint,
    plan_hash text, ttl bigint, expires_at bigint, created_at bigint not null, updated_at bigint not null,
    primary key (tenant, space, handle)
) partition by hash (tenant);

create index on recollect.tasks (space, expires_at) where expires_at is not null;

-- A state is stored as bytes, so that a corrupt one can be read and reported.
create table recollect.checkpoints (
    tenant text collate "C" not null, space bigint not null, task text collate "C" not null, version bigint not null,
    fence bigint not null, schema bigint not null, state bytea not null, sha256 bytea not null, at bigint not null,
    primary key (tenant, space, task, version)
) partition by hash (tenant);

create table recollect.steps (
    tenant text collate "C" not null, space bigint not null, task text collate "C" not null,
    handle text collate "C" not null, key text collate "C" not null,
    first bigint not null default nextval('recollect.step_order'),
    status text collate "C" not null, attempts bigint not null, fence bigint not null, idempotency_key text not null,
    input_sha text, result text, error text, at bigint not null,
    primary key (tenant, space, task, handle)
) partition by hash (tenant);

-- Every statement names its tenant. These policies guard against one that does not: a transaction sees the tenant of
-- `recollect.tenant`, or all of them if `recollect.everyone` is on. They apply to the owner of the tables too. In the
-- three largest tables the setting is read by a subquery, once per statement and not once per row. With the subquery,
-- under a generic plan, an update that waited for another of the same row does not find the row any more (PostgreSQL
-- 18.4). So updates of these three tables force a custom plan.
do $$
declare
    kept text;
    tenant text;
begin
    foreach kept in array array[
        'spaces', 'records', 'paths', 'vectors', 'postings', 'entries', 'tasks', 'checkpoints', 'steps'
    ]
    loop
        tenant := 'current_setting(''recollect.tenant'', true)';
        if kept in ('records', 'vectors', 'postings') then
            tenant := format('(select %s)', tenant);
        end if;
        execute format('alter table recollect.%I enable row level security, force row level security', kept);
        execute format(
            'create policy of_one_tenant on recollect.%I '
            'using (tenant = %s or current_setting(''recollect.everyone'', true) = ''on'')', kept, tenant
        );
        for part in 0..15 loop
            execute format(
                'create table recollect.%I partition of recollect.%I for values with (modulus 16, remainder %s)',
                kept || '_' || part, kept, part
            );
            -- A partition that is read directly has the same policy.
            execute format(
                'alter table recollect.%I enable row level security, force row level security', kept || '_' || part
            );
        end loop;
    end loop;
    -- A vector of many dimensions stays in its row: fetching each from a TOAST table would double the time of a scan.
    for part in 0..15 loop
        execute format('alter table recollect.%I set (toast_tuple_target = 8160)', 'vectors_' || part);
    end loop;
end
$$;
