-- Entries of a log that live, oldest first: those above a place, or the newest ones. All of it is one text, a list in
-- JSON of places and what is kept there: many small answers take a client longer.
--
-- KEYS: the log's order and its data. ARGV: now ('' sees what is hidden too), the place ('' for the newest),
-- how many, and the kinds that are wanted (none: all).

local now, after, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local kinds = {}
for n = 4, #ARGV do
    kinds[ARGV[n]] = true
end

local function wanted(header)
    if now ~= '' and string.sub(header, 1, 20) <= now then
        return false
    end
    return #ARGV < 4 or kinds[string.sub(header, 51, 50 + tonumber(string.sub(header, 41, 50)))]
end

-- Of those that are wanted for their kind more have to be looked at than are found.
local ids, from, page_size = {}, 0, #ARGV < 4 and math.min(limit, 100) or 100
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
    -- What stands in the order alone is damage, and told as such.
    table.insert(found, kept and '["' .. string.sub(kept, 1, 20) .. '",' .. string.sub(kept, 21) .. ']' or 'null')
end
return '[' .. table.concat(found, ',') .. ']'
