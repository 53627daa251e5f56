-- A row of the ledger in the place of the one that was seen, if it still is the one; asked twice, it answers the same.
--
-- KEYS: the rows, the chain of those that are complete, and the plans. ARGV: id, the row that was seen, the new row, what
-- the chain ended with where the row is added to it ('-' otherwise), and the plan that is carried out with this, or ''.
local id, seen, new, last, plan = unpack(ARGV)
local held = redis.call('HGET', KEYS[1], id) or ''
if (plan == '' and held == new) or (plan ~= '' and redis.call('HEXISTS', KEYS[3], plan) == 0) then
    return {'ok'}
end
if held ~= seen then
    return {'stale'}
end
if last ~= '-' then
    if (redis.call('LINDEX', KEYS[2], -1) or '') ~= last then
        return {'stale'}
    end
    redis.call('RPUSH', KEYS[2], id)
end
if plan ~= '' then
    redis.call('HDEL', KEYS[3], plan)
end
redis.call('HSET', KEYS[1], id, new)
return {'ok'}
