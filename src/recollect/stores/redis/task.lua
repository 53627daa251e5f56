-- Read a task's row with a version of its state (ARGV[2]; '' for the newest, '*' for all) or with its steps.
-- KEYS: its table, and its versions, or its steps and their order. ARGV: its name, and the version.
local row = redis.call('HGET', KEYS[1], ARGV[1])
if not row then return {} end
local found = {row}
if #KEYS == 3 then
    for _, step in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
        table.insert(found, step)
        table.insert(found, redis.call('HGET', KEYS[2], step))
    end
elseif ARGV[2] == '*' then
    for _, part in ipairs(redis.call('HGETALL', KEYS[2])) do table.insert(found, part) end
elseif #KEYS == 2 then
    local version = ARGV[2] == '' and string.match(row, '^%[(%d+),') or ARGV[2]
    local state = redis.call('HGET', KEYS[2], version)
    if state then
        table.insert(found, version)
        table.insert(found, state)
    end
end
return found
