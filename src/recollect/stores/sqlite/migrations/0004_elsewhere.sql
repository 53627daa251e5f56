-- Which stores an erasure concerns, each by a fingerprint of its key, with the subject's hash under that key: what one
-- of them knows, an older copy of another can learn from it.

alter table erasures add column elsewhere text not null default '{}';
