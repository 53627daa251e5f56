-- Read live entries of a log, oldest first: those above a seq, or the newest. The answer is one JSON text, because
-- clients parse many small answers more slowly.
--
-- KEYS: the log's order and its data. ARGV: now ('' includes expired entries), the seq ('' for the newest), the limit,
-- the first and the end of the wanted times ('' for none), and the wanted kinds (none: all).

local now, after, limit, first_time, end_time = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local kinds = {}
for n = 6, #ARGV do
    kinds[ARGV[n]] = true
end

local function wanted(header)
    if now ~= '' and string.sub(header, 1, 20) <= now then
        return false
    end
    local time = string.sub(header, 21, 40)
    if time < first_time or (end_time ~= '' and time >= end_time) then
        return false
    end
    return #ARGV < 6 or kinds[string.sub(header, 51, 50 + tonumber(string.sub(header, 41, 50)))]
end

-- With times or kinds, more entries have to be read than are returned.
local ids, from, page_size = {}, 0, 100
if #ARGV < 6 and first_time == '' and end_time == '' then
    page_size = math.min(limit, 100)
end
while #ids < limit do
    local page
    if after == '' then
        page = redis.call('ZREVRANGE', KEYS[1], from, from + page_size - 1)
    else
        page = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. after, '+inf', 'LIMIT', from, page_size)
    end
    if #page == 0 then
        break
    end
    for _, header in ipairs(page) do
        if #ids < limit and wanted(header) then
            table.insert(ids, string.sub(header, 51 + tonumber(string.sub(header, 41, 50))))
        end
    end
    from = from + page_size
end

local found = {}
local first, last, step = 1, #ids, 1
if after == '' then
    first, last, step = #ids, 1, -1
end
for n = first, last, step do
    local kept = redis.call('HGET', KEYS[2], ids[n])
    -- An entry without data is damage: answer null.
    table.insert(found, kept and '["' .. string.sub(kept, 1, 20) .. '",' .. string.sub(kept, 21) .. ']' or 'null')
end
return '[' .. table.concat(found, ',') .. ']'
