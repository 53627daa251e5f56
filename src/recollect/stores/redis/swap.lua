-- Replace a ledger row if it is as expected. Idempotent: a retry gives the same answer.
--
-- KEYS: the rows, and the chain of completed rows. ARGV: id, the expected row, the new row, and the expected end of the
-- chain if the row is added to it ('-' otherwise).
local id, seen, new, last = unpack(ARGV)
local held = redis.call('HGET', KEYS[1], id) or ''
if held == new then return 'ok' end
if held ~= seen or (last ~= '-' and (redis.call('LINDEX', KEYS[2], -1) or '') ~= last) then return 'stale' end
if last ~= '-' then redis.call('RPUSH', KEYS[2], id) end
redis.call('HSET', KEYS[1], id, new)
return 'ok'
