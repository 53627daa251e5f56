-- Erase data of one owner atomically, if nothing has changed since it was read.
--
-- KEYS: the marker, kept until the ledger has its counts. ARGV: the marker's value, the owner's prefix, the
-- expected spaces (count; name, number of entries and tasks, last seq and last fence each), the expected task rows
-- (count; space, task and row each), and what to delete: `space` with a space, or `task` with a space, task and expiry.

local at = 0
local function take()
    at = at + 1
    return ARGV[at]
end

local value, prefix = take(), take()
local owner = prefix .. 'owner'
if redis.call('EXISTS', KEYS[1]) == 1 then -- a retry
    return 'ok'
end

for _ = 1, tonumber(take()) do
    local space, entries, tasks, seq, fence = take(), tonumber(take()), tonumber(take()), take(), take()
    if redis.call('HLEN', prefix .. 'data:' .. space) ~= entries
        or redis.call('HLEN', prefix .. 'tasks:' .. space) ~= tasks
        or (redis.call('HGET', owner, 'seq:' .. space) or '') ~= seq
        or (redis.call('HGET', owner, 'fence:' .. space) or '') ~= fence then
        return 'stale'
    end
end
for _ = 1, tonumber(take()) do
    local space, task, row = take(), take(), take()
    if (redis.call('HGET', prefix .. 'tasks:' .. space, task) or '') ~= row then
        return 'stale'
    end
end

-- As in commit.lua.
local function named(space, task)
    return #space .. ':' .. space .. task
end

local function drop_task(space, task)
    local of = named(space, task)
    redis.call('UNLINK', prefix .. 'versions:' .. of, prefix .. 'steps:' .. of, prefix .. 'course:' .. of)
    redis.call('HDEL', prefix .. 'tasks:' .. space, task)
    redis.call('ZREM', prefix .. 'names:' .. space, task)
end

local goes = {}

function goes.space()
    local space = take()
    local tier = string.match(space, '^[^/]*')
    local known = redis.call('HGET', prefix .. 'logs', space)
    if known then
        redis.call('ZREM', prefix .. 'newest:' .. tier, string.sub(known, 41) .. space)
    end
    redis.call('HDEL', prefix .. 'logs', space)
    for _, task in ipairs(redis.call('HKEYS', prefix .. 'tasks:' .. space)) do
        drop_task(space, task)
    end
    for _, kind in ipairs({'order:', 'data:', 'tasks:', 'names:', 'ends:'}) do
        redis.call('UNLINK', prefix .. kind .. space)
    end
    redis.call('SREM', prefix .. 'spaces', space)
    local fence = tonumber(redis.call('HGET', owner, 'fence:' .. space) or '0')
    if fence > tonumber(redis.call('HGET', owner, 'floor') or '0') then
        redis.call('HSET', owner, 'floor', string.format('%.0f', fence))
    end
    redis.call('HDEL', owner, 'seq:' .. space, 'fence:' .. space)
end

function goes.task()
    local space, task, old = take(), take(), take()
    drop_task(space, task)
    redis.call('ZREM', prefix .. 'ends:' .. space, old .. task)
    if redis.call('EXISTS', prefix .. 'tasks:' .. space) == 0 then
        redis.call('SREM', prefix .. 'spaces', space)
    end
end

while at < #ARGV do
    goes[take()]()
end

-- An owner without data keeps nothing, not even its name.
local counted = redis.call('HLEN', owner) - redis.call('HEXISTS', owner, 'names') - redis.call('HEXISTS', owner, 'floor')
local left = redis.call('EXISTS', prefix .. 'logs', prefix .. 'spaces') + counted
if left == 0 then
    redis.call('UNLINK', owner)
end
redis.call('SET', KEYS[1], value)
return left == 0 and 'empty' or 'ok'
