-- The logs of an owner's tier that hold something that lives, newest last, each with the end of it.
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

-- By bytes: how Lua compares texts depends on the server's language.
local function before(one, other)
    for n = 1, math.min(#one, #other) do
        local left, right = string.byte(one, n), string.byte(other, n)
        if left ~= right then
            return left < right
        end
    end
    return #one < #other
end

local held = {}
for _, space in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    if space ~= own and string.sub(space, 1, #tier + 1) == tier .. '/' then
        local time = last_time(space)
        if time then
            table.insert(held, {time .. space, space})
        end
    end
end
table.sort(held, function(one, other) return before(one[1], other[1]) end)

local found = {}
if own ~= '' then
    table.insert(found, {own, tail(own, tonumber(ARGV[5]))})
    for n = math.max(#held - tonumber(ARGV[6]), 0) + 1, #held do
        table.insert(found, {held[n][2], tail(held[n][2], tonumber(ARGV[7]))})
    end
else
    for _, one in ipairs(held) do
        table.insert(found, one[2])
    end
end
return found
