-- Return a task to the queue. Returns 0 if the lease was lost. KEYS: stream, `later`, `suspects`, `history`; ARGV: id,
-- consumer, attempt, delay in milliseconds, the number of attempts to count, 1 if the last one failed.
local time, past = redis.call('TIME'), read(KEYS[4], ARGV[1])
redis.call('XCLAIM', KEYS[1], 'workers', 'released', 0, ARGV[1], 'RETRYCOUNT', ARGV[5], 'JUSTID')
local suspect = ARGV[6] == '0' and past[4] or 0
redis.call('ZADD', suspect == 1 and KEYS[3] or KEYS[2],
  time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4], ARGV[1])
write(KEYS[4], ARGV[1], {past[1] + ARGV[6], past[2], past[3], suspect, 0})
return 1
