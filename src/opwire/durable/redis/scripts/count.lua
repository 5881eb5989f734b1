-- Count the waiting tasks, claimed tasks and dead letters of an operation. KEYS: stream, `later`, `suspects`, dead
-- letters.
local length, later = redis.call('XLEN', KEYS[1]), redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3])
local pending = length > 0 and redis.call('XPENDING', KEYS[1], 'workers')[1] or 0
return {length - pending + later, pending - later, redis.call('ZCARD', KEYS[4])}
