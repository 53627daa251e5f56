-- The key of the hashes in `evidence`: random for each erasure, and dropped when it is complete. Unfinished erasures
-- used the salt of the store. The evidence of complete ones is deleted, because the salt is in the same file.

alter table erasures add column key blob not null default x'';

update erasures
set key = (select unhex(value) from meta where name = 'salt')
where phase <> 'complete';

update erasures set evidence = x'' where phase = 'complete';
