-- The key of the hashes in `evidence`: random for each erasure, and dropped when it is complete. Unfinished erasures
-- used the salt of the store. The evidence of complete ones is deleted, because the salt is in the same database.
alter table recollect.erasures add column key bytea not null default '';

update recollect.erasures
set key = (select decode(value, 'hex') from recollect.meta where name = 'salt')
where phase <> 'complete';

update recollect.erasures set evidence = '' where phase = 'complete';
