-- Record outcomes of one operation, unless their tasks have one.
--
-- KEYS: stream, `later`, `suspects`, `history`, dead letters, requests, then the string of each task, none twice; ARGV:
-- milliseconds to keep outcomes, the name of the channels without the peer, then for each task the id of its entry, its
-- outcome, and its time and key if it is a dead letter, or ''. Returns 0 if all were recorded, otherwise for each the
-- earlier outcome, 0 if this one was recorded, -1 if the task is unknown, or the error of a key of another type.
local call, match, stream, count = redis.call, string.match, KEYS[1], #KEYS - 6
local replies, tasks, values, ids, entries, published = {}, {}, {}, {}, {}, {}
local stored_values = call('MGET', unpack(KEYS, 7))
for i = 7, #KEYS do
  local task, at, reply = KEYS[i], 3 * i - 18, -1
  local id, outcome, value = ARGV[at], ARGV[at + 1], stored_values[i - 6] or redis.pcall('GET', task)
  if type(value) == 'table' then
    reply = value
  elseif value then
    local fingerprint, entry, peers = match(value, '^(%S*) (%S*) ?(.*)$')
    if not entry then
      reply = match(value, '^%S*\n(.*)$') or -1
    elseif entry == id then
      local n, list = #ids + 1, published[peers]
      reply, ids[n], tasks[n], values[n] = 0, id, i, fingerprint .. '\n' .. outcome
      if ARGV[at + 2] ~= '' then entries[i] = call('XRANGE', stream, id, id)[1] end
      if list then list[#list + 1] = outcome else published[peers] = {outcome} end
    end
  end
  replies[i - 6] = reply
end
if #ids == 0 then return replies end

call('XACK', stream, 'workers', unpack(ids))
call('XDEL', stream, unpack(ids))
if call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 then
  call('ZREM', KEYS[2], unpack(ids))
  call('ZREM', KEYS[3], unpack(ids))
  call('HDEL', KEYS[4], unpack(ids))
end
for n, i in ipairs(tasks) do
  local recorded = ARGV[3 * i - 16]
  if recorded == '' then
    call('SET', KEYS[i], values[n], 'PX', ARGV[1])
  else
    local time, key = match(recorded, '^(%d+) (.*)$')
    call('SET', KEYS[i], values[n])
    call('ZADD', KEYS[5], time, key)
    if entries[i] then call('HSET', KEYS[6], key, entries[i][2][2]) end
  end
end
for peers, outcomes in pairs(published) do
  local message = string.char(220, 0, #outcomes) .. table.concat(outcomes)
  for peer in string.gmatch(peers, '%S+') do call('PUBLISH', ARGV[2] .. peer, message) end
end
return #ids == count and 0 or replies
