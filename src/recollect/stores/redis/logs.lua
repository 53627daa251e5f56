-- The logs of an owner's tier that hold something that lives: the end of one and of the newest others, newest last;
-- or a page of all of them, in the order they are listed in, each with the time of its last entry.
--
-- KEYS: what is known of the owner's logs, and the list of those of this tier. ARGV: prefix, now ('' sees what is hidden
-- too), the log itself ('' for none: then a page is read), and either how many of its entries, how many others, how many
-- entries of each; or where the page begins and how long it is.

local prefix, now, own = ARGV[1], ARGV[2], ARGV[3]

local function lives(header)
    return now == '' or string.sub(header, 1, 20) > now
end

-- All of it as one text, a list in JSON of places and what is kept there: many small answers take a client longer.
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
        -- What stands in the order alone is damage, and told as such.
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

-- Names by bytes: how Lua compares texts depends on the server's language. Times are digits, which it does not.
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

-- What is known is enough while its last entry lives. Of what has expired the server may have dropped all.
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

-- From the newest on, until no other can be newer than those that were picked: thousands may come after.
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
