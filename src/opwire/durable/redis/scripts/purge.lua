-- Delete a task that has ended. KEYS: the task, dead letters, requests; ARGV: key. Returns 0 if it is unknown.
if not string.match(redis.call('GET', KEYS[1]) or '', '^%S*\n') then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
return 1
