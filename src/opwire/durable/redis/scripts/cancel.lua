-- End a task that no worker has claimed.
--
-- KEYS: the task, stream, `later`, `suspects`, `history`; ARGV: key, outcome, milliseconds to keep it, the name of the
-- channels without the peer. Returns the earlier outcome, 0 if this one was recorded, or -1 if the task is claimed,
-- unknown or of another operation.
local fingerprint, state, rest = string.match(redis.call('GET', KEYS[1]) or '', '^(%S*)(%s)(.*)$')
if not state then return -1 end
if state == '\n' then return rest end
local id, peers = string.match(rest, '^(%S*) ?(.*)$')
local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
if not entry or cjson.decode(string.match(entry[2][2], '^[^\n]*'))[1] ~= ARGV[1] then return -1 end
local pending = redis.call('XPENDING', KEYS[2], 'workers', id, id, 1)[1]
if pending and pending[2] ~= 'released' then return -1 end
redis.call('XDEL', KEYS[2], id)
redis.call('XACK', KEYS[2], 'workers', id)
redis.call('ZREM', KEYS[3], id)
redis.call('ZREM', KEYS[4], id)
redis.call('HDEL', KEYS[5], id)
redis.call('SET', KEYS[1], fingerprint .. '\n' .. ARGV[2], 'PX', ARGV[3])
for peer in string.gmatch(peers, '%S+') do
  redis.call('PUBLISH', ARGV[4] .. peer, string.char(145) .. ARGV[2])
end
return 0
