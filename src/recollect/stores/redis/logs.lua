-- The logs of an owner's tier that hold something that lives: the end of one and of the newest others, newest last;
-- or all of them with the times of their last entries, in no order.
--
-- KEYS: the owner's list of logs. ARGV: prefix, tier, now ('' sees what is hidden too), the log itself ('' for none:
-- then all are listed), how many of its entries, how many others, how many entries of each.

local prefix, tier, now, own = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function lives(header)
    return now == '' or string.sub(header, 1, 20) > now
end

local function tail(space, limit)
    local ids, from = {}, 0
    while #ids < limit do
        local page = redis.call('ZREVRANGE', prefix .. 'order:' .. space, from, from + 99)
        if #page == 0 then
            break
        end
        for _, header in ipairs(page) do
            if #ids < limit and lives(header) then
                table.insert(ids, string.sub(header, 51 + tonumber(string.sub(header, 41, 50))))
            end
        end
        from = from + 100
    end
    local found = {}
    for n = #ids, 1, -1 do
        table.insert(found, redis.call('HGET', prefix .. 'data:' .. space, ids[n]))
    end
    return found
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

local held = {}
for _, space in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    if space ~= own and string.sub(space, 1, #tier + 1) == tier .. '/' then
        local time = last_time(space)
        if time then
            table.insert(held, {time = time, space = space})
        end
    end
end

local found = {}
if own == '' then
    for _, log in ipairs(held) do
        table.insert(found, {log.time, log.space})
    end
    return found
end

-- The few newest are picked and not all sorted: the server does nothing else meanwhile.
local newest, most = {}, tonumber(ARGV[6])
for _, log in ipairs(held) do
    if #newest < most or (most > 0 and before(newest[1], log)) then
        local place = #newest + 1
        while place > 1 and before(log, newest[place - 1]) do
            place = place - 1
        end
        table.insert(newest, place, log)
        if #newest > most then
            table.remove(newest, 1)
        end
    end
end

table.insert(found, {own, tail(own, tonumber(ARGV[5]))})
for _, log in ipairs(newest) do
    table.insert(found, {log.space, tail(log.space, tonumber(ARGV[7]))})
end
return found
