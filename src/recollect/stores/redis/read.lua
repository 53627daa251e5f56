-- Read logs of an owner's tier. Entries are answered as one JSON text: clients parse many small answers more slowly.
--
-- KEYS: the hash of the owner's logs, and the sorted set of this tier's logs. ARGV: prefix, now ('' includes expired
-- entries), and one of
-- `entries`, a log, a seq ('' for the newest entries), the limit, the first and the end of the wanted times ('' for
-- none), and the wanted kinds (none: all), to read a log in the order of the seqs;
-- `tails`, a log, and the numbers of its entries, of other logs and of entries of each, to read the tail of the log and
-- of the newest others with live entries, newest last;
-- `logs`, a start and a length, to read a page of all logs in stored order, each with the time of its last entry.

local prefix, now, what, own = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function lives(header) return now == '' or string.sub(header, 1, 20) > now end

local function read(space, limit, wanted, after)
    local order, ids, from = prefix .. 'order:' .. space, {}, 0
    -- With times or kinds, more entries have to be read than are returned.
    local page_size = wanted == lives and math.min(limit, 100) or 100
    while #ids < limit do
        local page
        if after == '' then
            page = redis.call('ZREVRANGE', order, from, from + page_size - 1)
        else
            page = redis.call('ZRANGEBYSCORE', order, '(' .. after, '+inf', 'LIMIT', from, page_size)
        end
        if #page == 0 then break end
        for _, header in ipairs(page) do
            if #ids < limit and wanted(header) then
                table.insert(ids, string.sub(header, 51 + tonumber(string.sub(header, 41, 50))))
            end
        end
        from = from + page_size
    end
    local found = {}
    for n = 1, #ids do
        local kept = redis.call('HGET', prefix .. 'data:' .. space, ids[after == '' and #ids - n + 1 or n])
        -- An entry without data is damage: answer null.
        found[n] = kept and '["' .. string.sub(kept, 1, 20) .. '",' .. string.sub(kept, 21) .. ']' or 'null'
    end
    return '[' .. table.concat(found, ',') .. ']'
end

if what == 'entries' then
    local first_time, end_time, kinds = ARGV[7], ARGV[8], {}
    for n = 9, #ARGV do kinds[ARGV[n]] = true end
    local function wanted(header)
        local time = string.sub(header, 21, 40)
        return lives(header) and time >= first_time and (end_time == '' or time < end_time)
            and (#ARGV < 9 or kinds[string.sub(header, 51, 50 + tonumber(string.sub(header, 41, 50)))])
    end
    local selects = #ARGV > 8 or first_time .. end_time ~= ''
    return read(own, tonumber(ARGV[6]), selects and wanted or lives, ARGV[5])
end

-- The stored expiry is enough while the last entry is live. The server may have purged an expired log.
local function time_of(space)
    local known, from = redis.call('HGET', KEYS[1], space), 0
    if known and now ~= '' and lives(known) then return string.sub(known, 21, 40) end
    while true do
        local page = redis.call('ZREVRANGE', prefix .. 'order:' .. space, from, from + from)
        for _, header in ipairs(page) do
            if lives(header) then return string.sub(header, 21, 40) end
        end
        if #page == 0 then return nil end
        from = from + from + 1
    end
end

if what == 'logs' then
    local page = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[4], '+', 'LIMIT', 0, tonumber(ARGV[5]))
    local found = {page[#page] or ''}
    for _, listed in ipairs(page) do
        local space = string.sub(listed, 21)
        local time = time_of(space)
        if time then table.insert(found, {time, space}) end
    end
    return found
end

-- Compare names by bytes: Lua's text comparison depends on the server's locale, except for digits.
local function before(one, other)
    if one.time ~= other.time then return one.time < other.time end
    for n = 1, math.min(#one.space, #other.space) do
        local left, right = string.byte(one.space, n), string.byte(other.space, n)
        if left ~= right then return left < right end
    end
    return #one.space < #other.space
end

-- Newest first, until no other log can be newer than those picked: thousands may follow.
local function newest(most)
    local picked, from = {}, 0
    while most > 0 do
        local page = redis.call('ZREVRANGE', KEYS[2], from, from + 49)
        for _, listed in ipairs(page) do
            local log = {time = string.sub(listed, 1, 20), space = string.sub(listed, 21)}
            if #picked == most and before(log, picked[1]) then return picked end
            log.time = log.space ~= own and time_of(log.space)
            if log.time and (#picked < most or before(picked[1], log)) then
                local place = #picked + 1
                while place > 1 and before(log, picked[place - 1]) do
                    place = place - 1
                end
                table.insert(picked, place, log)
                if #picked > most then table.remove(picked, 1) end
            end
        end
        if #page < 50 then break end
        from = from + 50
    end
    return picked
end

local found = {own, read(own, tonumber(ARGV[5]), lives, '')}
for _, log in ipairs(newest(tonumber(ARGV[6]))) do
    table.insert(found, log.space)
    table.insert(found, read(log.space, tonumber(ARGV[7]), lives, ''))
end
return found
