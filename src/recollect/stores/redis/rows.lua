-- Read the rows of tasks, and the server's time. KEYS: their tables. ARGV: their names.
local clock = redis.call('TIME')
local found = {clock[1] .. string.format('%06d', clock[2])}
for n = 1, #KEYS do table.insert(found, redis.call('HGET', KEYS[n], ARGV[n]) or '') end
return found
