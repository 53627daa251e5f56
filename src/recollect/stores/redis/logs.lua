-- Read the logs of an owner's tier that have live entries: the tail of one log and of the newest others, newest last;
-- or a page of all logs in stored order, each with the time of its last entry.
--
-- KEYS: the hash of the owner's logs, and the sorted set of this tier's logs. ARGV: prefix, now ('' includes expired
-- entries), the log ('' to read a page), and either the numbers of its entries, of other logs and of entries of each,
-- or the start and length of the page.

local prefix, now, own = ARGV[1], ARGV[2], ARGV[3]

local function lives(header)
    return now == '' or string.sub(header, 1, 20) > now
end

-- Answer with one JSON text: clients parse many small answers more slowly.
local function tail(space, limit)
    local ids, from, page_size = {}, 0, math.min(limit, 100)
    while #ids < limit do
        local page = redis.call('ZREVRANGE', prefix .. 'order:' .. space, from, from + page_size - 1)
        if #page == 0 then
            break
        end
        for _, header in ipairs(page) do
            if #ids < limit and lives(header) then
                table.insert(ids, string.sub(header, 51 + tonumber(string.sub(header, 41, 50))))
            end
        end
        from = from + page_size
    end
    local found = {}
    for n = #ids, 1, -1 do
        local kept = redis.call('HGET', prefix .. 'data:' .. space, ids[n])
        -- An entry without data is damage: answer null.
        table.insert(found, kept and '["' .. string.sub(kept, 1, 20) .. '",' .. string.sub(kept, 21) .. ']' or 'null')
    end
    return '[' .. table.concat(found, ',') .. ']'
end

local function last_time(space)
    local from = 0
    while true do
        local page = redis.call('ZREVRANGE', prefix .. 'order:' .. space, from, from + from)
        if #page == 0 then
            return nil
        end
        for _, header in ipairs(page) do
            if lives(header) then
                return string.sub(header, 21, 40)
            end
        end
        from = from + from + 1
    end
end

-- Compare names by bytes: Lua's text comparison depends on the server's locale, except for digits.
local function before(one, other)
    if one.time ~= other.time then
        return one.time < other.time
    end
    for n = 1, math.min(#one.space, #other.space) do
        local left, right = string.byte(one.space, n), string.byte(other.space, n)
        if left ~= right then
            return left < right
        end
    end
    return #one.space < #other.space
end

-- The stored expiry is enough while the last entry is live. The server may have purged an expired log.
local function time_of(space)
    local known = redis.call('HGET', KEYS[1], space)
    if known and now ~= '' and lives(known) then
        return string.sub(known, 21, 40)
    end
    return last_time(space)
end

if own == '' then
    local page = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[4], '+', 'LIMIT', 0, tonumber(ARGV[5]))
    local found = {page[#page] or ''}
    for _, listed in ipairs(page) do
        local space = string.sub(listed, 21)
        local time = time_of(space)
        if time then
            table.insert(found, {time, space})
        end
    end
    return found
end

-- Newest first, until no other log can be newer than those picked: thousands may follow.
local function newest(most)
    local picked, from = {}, 0
    while most > 0 do
        local page = redis.call('ZREVRANGE', KEYS[2], from, from + 49)
        for _, listed in ipairs(page) do
            local log = {time = string.sub(listed, 1, 20), space = string.sub(listed, 21)}
            if #picked == most and before(log, picked[1]) then
                return picked
            end
            log.time = log.space ~= own and time_of(log.space)
            if log.time and (#picked < most or before(picked[1], log)) then
                local place = #picked + 1
                while place > 1 and before(log, picked[place - 1]) do
                    place = place - 1
                end
                table.insert(picked, place, log)
                if #picked > most then
                    table.remove(picked, 1)
                end
            end
        end
        if #page < 50 then
            return picked
        end
        from = from + 50
    end
    return picked
end

local found = {own, tail(own, tonumber(ARGV[4]))}
for _, log in ipairs(newest(tonumber(ARGV[5]))) do
    table.insert(found, log.space)
    table.insert(found, tail(log.space, tonumber(ARGV[6])))
end
return found
