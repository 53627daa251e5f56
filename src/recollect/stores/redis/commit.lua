-- Write a batch atomically: check everything that could refuse it first, then write.
--
-- KEYS: one key of each owner in the batch, so that a cluster knows where to run this. All other keys are built from
-- the owners' prefixes and are in the same slots.
-- ARGV: batch id, the TTL of its answer in ms ('keep' for ever), now, maximum clock skew in microseconds ('' for no
-- limit), ms until a log is purged after its last entry expired ('' for never), the highest erased fence ('' unless the
-- owners were indexed), the expected values (count; key, field and value each, or the number of fields if the field is
-- ''), the logs whose last seq is expected (count; prefix, space, id of the entry and seq each), the owners (count;
-- prefix and names each), and the writes.

local at = 0
local function take()
    at = at + 1
    return ARGV[at]
end

local id, memory, now, tolerance, grace, erased = take(), take(), take(), take(), take(), take()
local clock = redis.call('TIME')
local time = clock[1] .. string.format('%06d', clock[2])

-- A retry, because the first answer was lost: return the same answer and write nothing.
local done = KEYS[1] .. ':' .. id
local said = redis.call('GET', done)
if said then return {'ok', time, said} end

if tolerance ~= '' and math.abs(tonumber(time) - tonumber(now) + 2 ^ 62) > tonumber(tolerance) then
    return {'clock', time}
end

local rows, stale = {'stale', time}, false
for _ = 1, tonumber(take()) do
    local key, name, seen = take(), take(), take()
    local held = name == '' and tostring(redis.call('HLEN', key)) or redis.call('HGET', key, name) or ''
    stale = stale or held ~= seen
    table.insert(rows, held)
end
if stale then return rows end

for expectation = 1, tonumber(take()) do
    local prefix, space, id, expected = take(), take(), take(), take()
    local last = redis.call('HGET', prefix .. 'owner', 'seq:' .. space) or '0'
    if last ~= expected and redis.call('HEXISTS', prefix .. 'data:' .. space, id) == 0 then
        return {'conflict', time, tostring(expectation), last}
    end
end

-- Writes before a failure are not rolled back, so check the permissions first (Redis 7 and newer).
local key = KEYS[1]
for _, command in ipairs(redis.acl_check_cmd and {
    {'HSET', key, 'a', 'b'}, {'HDEL', key, 'a'}, {'HINCRBY', key, 'a', '1'}, {'ZADD', key, '0', 'a'},
    {'ZREM', key, 'a'}, {'ZREMRANGEBYSCORE', key, '0', '1'}, {'SADD', key, 'a'}, {'SREM', key, 'a'},
    {'RPUSH', key, 'a'}, {'DEL', key}, {'PERSIST', key}, {'PEXPIREAT', key, '1'}, {'SET', key, 'a', 'PX', '1'},
} or {}) do
    if not redis.acl_check_cmd(unpack(command)) then return {'denied', time, command[1]} end
end

-- Data of an owner that is in no index could not be found again: index the owner first.
local unknown = {'index', time}
for _ = 1, tonumber(take()) do
    local prefix, names = take(), take()
    if names ~= '' and redis.call('EXISTS', prefix .. 'owner') == 0 then
        if erased == '' then
            table.insert(unknown, prefix)
        else
            redis.call('HSET', prefix .. 'owner', 'names', names, 'floor', erased)
        end
    end
end
if #unknown > 2 then return unknown end

-- Members of a log's sorted set are headers: expiry and time (20 digits each), length of kind, kind, id.
local function lives(header) return string.sub(header, 1, 20) > now end

local function forget(order, data, first, last)
    for _, header in ipairs(redis.call('ZRANGEBYSCORE', order, first, last)) do
        redis.call('HDEL', data, string.sub(header, 51 + tonumber(string.sub(header, 41, 50))))
    end
    redis.call('ZREMRANGEBYSCORE', order, first, last)
end

-- Keep the newest `cap` live entries; expired ones do not count.
local function trim(order, data, cap)
    local living, size = 0, redis.call('ZCARD', order)
    if size <= cap then return end
    for from = 0, size - 1, 200 do
        local page = redis.call('ZREVRANGE', order, from, from + 199, 'WITHSCORES')
        for n = 1, #page, 2 do
            living = living + (lives(page[n]) and 1 or 0)
            if living > cap then return forget(order, data, '-inf', page[n + 1]) end
        end
    end
end

-- For every log, store the expiry and the time of its last entry. A tier's logs are sorted by the latest time that any
-- of their entries had, deleted ones included: no log is newer than that.
local function list(prefix, space, latest)
    local order = prefix .. 'newest:' .. string.match(space, '^[^/]*')
    local known = redis.call('HGET', prefix .. 'logs', space)
    local before = known and string.sub(known, 41)
    local last = redis.call('ZREVRANGE', prefix .. 'order:' .. space, 0, 0)[1]
    if before and last and (not latest or latest < before) then latest = before end
    if before and (not last or before ~= latest) then redis.call('ZREM', order, before .. space) end
    if not last then
        redis.call('HDEL', prefix .. 'logs', space)
        return
    end
    if before ~= latest then redis.call('ZADD', order, 0, latest .. space) end
    redis.call('HSET', prefix .. 'logs', space, string.sub(last, 1, 40) .. latest)
end

-- Let the server purge a log some time after its last entry expired, unless the log has or had, since it was last
-- empty, an entry without expiry.
local function put_off(key, left, header)
    local expiry = string.sub(header, 1, 20)
    if expiry == '99999999999999999999' then
        redis.call('PERSIST', key)
    elseif left ~= -1 then
        local millis = math.floor(tonumber(time) / 1000)
        local last = math.max(math.floor((tonumber(expiry) - 2 ^ 62) / 1000), millis) + tonumber(grace)
        redis.call('PEXPIREAT', key, string.format('%.0f', math.max(millis + left, last)))
    end
end

-- The length keeps the names of tasks in different sessions distinct.
local function key_of(prefix, kind, space, task) return prefix .. kind .. #space .. ':' .. space .. task end

local function put_end(prefix, space, task, old, new)
    if old ~= new then
        if old ~= '' then redis.call('ZREM', prefix .. 'ends:' .. space, old .. task) end
        if new ~= '' then redis.call('ZADD', prefix .. 'ends:' .. space, 0, new .. task) end
    end
end

local function drop_task(prefix, space, task, old)
    redis.call('HDEL', prefix .. 'tasks:' .. space, task)
    redis.call('ZREM', prefix .. 'names:' .. space, task)
    for _, kind in ipairs({'versions:', 'steps:', 'course:'}) do
        redis.call('DEL', key_of(prefix, kind, space, task))
    end
    put_end(prefix, space, task, old, '')
    if redis.call('EXISTS', prefix .. 'tasks:' .. space) == 0 then
        redis.call('SREM', prefix .. 'spaces', space)
    end
end

-- Raise a fence of an owner: `fence:SPACE`, or the `floor` of all its spaces.
local function raise(prefix, name, fence)
    if fence > tonumber(redis.call('HGET', prefix .. 'owner', name) or '0') then
        redis.call('HSET', prefix .. 'owner', name, string.format('%.0f', fence))
    end
end

local answer = ''
local places = {}
local writes = {}

function writes.append(prefix, space)
    local id, header, value, cap, least = take(), take(), take(), take(), tonumber(take())
    local order, data = prefix .. 'order:' .. space, prefix .. 'data:' .. space
    local held = redis.call('HGET', data, id)
    local place = held and string.sub(held, 1, 20)
    local new = ''
    local header_held = held and redis.call('ZRANGEBYSCORE', order, place, place)[1]
    if not header_held or not lives(header_held) then
        if header_held then
            redis.call('ZREM', order, header_held)  -- expired, so its id can be used again
        end
        local left = redis.call('PTTL', order)
        local seq = redis.call('HINCRBY', prefix .. 'owner', 'seq:' .. space, 1)
        if seq < least then
            redis.call('HSET', prefix .. 'owner', 'seq:' .. space, string.format('%.0f', least))
            seq = least
        end
        new = string.format('%020.0f', seq)
        redis.call('ZADD', order, seq, header)
        redis.call('HSET', data, id, new .. value)
        if grace ~= '' then
            put_off(order, left, header)
            put_off(data, left, header)
        end
    end
    if cap ~= '' then trim(order, data, tonumber(cap)) end
    list(prefix, space, string.sub(header, 21, 40))
    table.insert(places, new)
end

function writes.clear(prefix, space)
    redis.call('DEL', prefix .. 'order:' .. space, prefix .. 'data:' .. space)
    list(prefix, space)
end

function writes.drop(prefix, space)
    local order, data = prefix .. 'order:' .. space, prefix .. 'data:' .. space
    for _ = 1, tonumber(take()) do
        local seq = take()
        forget(order, data, seq, seq)
    end
    list(prefix, space)
end

-- A row that ends with a comma is a claim, which gets the next fence of its space: a fence is not reused after its task
-- was dropped. New fences are above the highest fence of all erased spaces.
function writes.row(prefix, space)
    local task, row, old, new = take(), take(), take(), take()
    if string.sub(row, -1) == ',' then
        raise(prefix, 'fence:' .. space, tonumber(redis.call('HGET', prefix .. 'owner', 'floor') or '0'))
        answer = string.format('%.0f', redis.call('HINCRBY', prefix .. 'owner', 'fence:' .. space, 1))
        row = row .. answer .. ']'
    end
    redis.call('HSET', prefix .. 'tasks:' .. space, task, row)
    redis.call('ZADD', prefix .. 'names:' .. space, 0, task)
    redis.call('SADD', prefix .. 'spaces', space)
    put_end(prefix, space, task, old, new)
end

-- A restored task: later fences must be higher than its own.
function writes.fenced(prefix, space) raise(prefix, 'fence:' .. space, tonumber(take())) end

function writes.state(prefix, space)
    local task, version, state, keep = take(), tonumber(take()), take(), tonumber(take())  -- nil keeps all
    local versions = key_of(prefix, 'versions:', space, task)
    for _, kept in ipairs(keep and redis.call('HKEYS', versions) or {}) do
        if tonumber(kept) <= version - keep then redis.call('HDEL', versions, kept) end
    end
    redis.call('HSET', versions, version, state)
end

function writes.note(prefix, space)
    local task, step, note = take(), take(), take()
    if redis.call('HSET', key_of(prefix, 'steps:', space, task), step, note) == 1 then
        redis.call('RPUSH', key_of(prefix, 'course:', space, task), step)
    end
end

function writes.gone(prefix, space) drop_task(prefix, space, take(), take()) end

-- Erase a space with everything that was counted for it. Later fences are above its last one.
function writes.erase(prefix, space)
    local owner = prefix .. 'owner'
    writes.clear(prefix, space)
    for _, task in ipairs(redis.call('HKEYS', prefix .. 'tasks:' .. space)) do
        drop_task(prefix, space, task, '')
    end
    redis.call('DEL', prefix .. 'ends:' .. space)
    raise(prefix, 'floor', tonumber(redis.call('HGET', owner, 'fence:' .. space) or '0'))
    redis.call('HDEL', owner, 'seq:' .. space, 'fence:' .. space)
end

-- End an erasure: answer with its counts. An owner without data keeps nothing, not even its name.
function writes.erased(prefix)
    answer = take()
    local owner = prefix .. 'owner'
    local unused = redis.call('HEXISTS', owner, 'names') + redis.call('HEXISTS', owner, 'floor')
    if redis.call('EXISTS', prefix .. 'logs', prefix .. 'spaces') == 0 and redis.call('HLEN', owner) == unused then
        redis.call('DEL', owner)
    end
end

while at < #ARGV do
    local write = writes[take()]
    write(take(), take())
end

-- Answer with the seqs of new entries; empty for those that existed.
if #places > 0 then answer = table.concat(places, ',') end

-- Last, because on a full server a SET would refuse a batch that only deletes.
if memory == 'keep' then
    redis.call('SET', done, answer)
elseif memory ~= '' then
    redis.call('SET', done, answer, 'PX', memory)
end
return {'ok', time, answer}
