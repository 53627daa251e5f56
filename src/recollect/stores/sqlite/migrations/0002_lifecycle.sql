-- What the lifecycle needs to know of an item: whether it must stay as it is, up to when its importance has been
-- aged, and since when it has been here if it was said to be older than that.

alter table records add column pinned integer not null default 0;
alter table records add column decayed_at integer;
alter table records add column learned_at integer;
