-- Claim tasks, and delete idle consumers that have none.
--
-- KEYS: set of operations, then stream, `later`, `suspects` and `history` of each; ARGV: our consumer, the limit, 1 to
-- poll for released and lost tasks, the operation to start with, milliseconds after which a consumer is idle, 1 to
-- claim suspects, the operations. Returns one suspect, or other tasks: for each the index of its operation, its id,
-- attempt, fields and history, which new tasks lack.
local our_consumer, room, polls = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local turn, idle_limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local operations, taken = (#KEYS - 1) / 4, {}
local stream, later, suspects, history, place

local function turn_to(i)
  place = (turn + i) % operations
  stream, later, suspects, history = unpack(KEYS, 2 + 4 * place, 5 + 4 * place)
end

local function take(id, attempt, fields, past)
  taken[#taken + 1] = {place, id, attempt, fields, past}
  room = room - 1
end

local function claim(pending, lost)
  local id = pending[1]
  local entry, past = redis.call('XCLAIM', stream, 'workers', our_consumer, 0, id)[1], read(history, id)
  if not entry then
    redis.call('XACK', stream, 'workers', id)
    redis.call('HDEL', history, id)
    return
  end
  if lost then past = {past[1], past[2] + 1, past[3] + past[5], 1, 0} end
  if lost then write(history, id, past) end
  take(id, pending[4] + 1, entry[2], past)
end

local function released(set, max_count)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, max_count)) do
    redis.call('ZREM', set, id)
    local pending = redis.call('XPENDING', stream, 'workers', id, id, 1)[1]
    if pending then claim(pending, false) end
  end
end

local function expired(max_count)
  for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', stream, 'workers')) do
    local consumer = {}
    for i = 1, #fields, 2 do consumer[fields[i]] = fields[i + 1] end
    local lease = string.match(consumer.name, ':(%d+)$')
    if consumer.pending == 0 then
      if consumer.idle > idle_limit then redis.call('XGROUP', 'DELCONSUMER', stream, 'workers', consumer.name) end
    elseif lease and max_count > #taken then
      local late = redis.call('XPENDING', stream, 'workers', 'IDLE', lease, '-', '+', 1, consumer.name)
      for _, pending in ipairs(late) do claim(pending, true) end
    end
  end
end

for i = 0, operations - 1 do
  turn_to(i)
  if redis.call('EXISTS', stream) == 0 then
    redis.call('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
    redis.call('SADD', KEYS[1], ARGV[7 + place])
  end
  local max_count = ARGV[6] == '1' and 1 or 0
  if polls and max_count > #taken then released(suspects, 1) end
  if polls then expired(max_count) end
end
if #taken > 0 then return taken end

for i = 0, operations - 1 do
  turn_to(i)
  if polls and room > 0 then released(later, room) end
  if room > 0 then
    local reply = redis.call('XREADGROUP', 'GROUP', 'workers', our_consumer, 'COUNT', room, 'STREAMS', stream, '>')
    for _, entry in ipairs(reply and reply[1][2] or {}) do take(entry[1], 1, entry[2]) end
  end
end
return taken
