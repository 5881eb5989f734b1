-- Count the waiting, claimed and buried tasks of an operation. KEYS: stream, `later`, `suspects`, buried.
local length, later = redis.call('XLEN', KEYS[1]), redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3])
local pending = length > 0 and redis.call('XPENDING', KEYS[1], 'workers')[1] or 0
return {length - pending + later, pending - later, redis.call('ZCARD', KEYS[4])}
