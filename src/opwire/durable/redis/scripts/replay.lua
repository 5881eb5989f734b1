-- Submit a dead letter again. KEYS: the task, stream, dead letters, requests; ARGV: key. Returns 0 if it is unknown.
local entry = redis.call('HGET', KEYS[4], ARGV[1])
local fingerprint = string.match(redis.call('GET', KEYS[1]) or '', '^(%S*)\n')
if not entry or not fingerprint then return 0 end
redis.call('SET', KEYS[1], fingerprint .. ' ' .. redis.call('XADD', KEYS[2], '*', 'task', entry) .. ' ')
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
