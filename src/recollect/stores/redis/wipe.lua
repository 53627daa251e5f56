-- What is erased of one owner, whole or not at all, if nothing has changed since it was looked at.
--
-- KEYS: the mark that stays until the ledger knows that this was done. ARGV: a name for it, the owner's prefix, what was
-- seen (count; a space, how many entries and tasks it has, its last place and its last fence each), the rows of tasks that
-- were seen (count; space, task and row each), and what goes: `space` with a space, or `task` with a space, a task and its end.

local at = 0
local function take()
    at = at + 1
    return ARGV[at]
end

local name, prefix = take(), take()
local owner = prefix .. 'owner'
if redis.call('GET', KEYS[1]) == name then
    return {'ok'}
end

for _ = 1, tonumber(take()) do
    local space, entries, tasks, seq, fence = take(), tonumber(take()), tonumber(take()), take(), take()
    if redis.call('HLEN', prefix .. 'data:' .. space) ~= entries
        or redis.call('HLEN', prefix .. 'tasks:' .. space) ~= tasks
        or (redis.call('HGET', owner, 'seq:' .. space) or '') ~= seq
        or (redis.call('HGET', owner, 'fence:' .. space) or '') ~= fence then
        return {'stale'}
    end
end
for _ = 1, tonumber(take()) do
    local space, task, row = take(), take(), take()
    if (redis.call('HGET', prefix .. 'tasks:' .. space, task) or '') ~= row then
        return {'stale'}
    end
end

-- As in `commit`.
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

-- Of an owner who has nothing any more not even the name stays.
local counted = redis.call('HLEN', owner) - redis.call('HEXISTS', owner, 'names') - redis.call('HEXISTS', owner, 'floor')
local left = redis.call('EXISTS', prefix .. 'logs', prefix .. 'spaces') + counted
if left == 0 then
    redis.call('UNLINK', owner)
end
redis.call('SET', KEYS[1], name)
return {'ok', left == 0 and 'empty' or ''}
