-- Store tasks of one operation, unless their keys are known.
--
-- KEYS: stream, set of operations, then the string of each task, none twice; ARGV: operation, then for each task its
-- entry, its fingerprint, and the peer at which a caller waits, or ''. Returns 0 if all tasks are new, otherwise for
-- each the outcome, 0 if there is none yet, -1 for a key with another fingerprint, or its own error: its key has
-- another type, or there is no memory for a new task.
local call, stream, replies = redis.call, KEYS[1], {}
local is_new = call('EXISTS', stream) == 0

local function add(entry)
  local begun = is_new and redis.pcall('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
  local id = begun and begun.err and begun or redis.pcall('XADD', stream, '*', 'task', entry)
  if type(id) == 'table' then return nil, {err = string.match(id.err, 'OOM.*') or id.err} end  -- as outside of a script
  if is_new then call('SADD', KEYS[2], ARGV[1]) end
  is_new = false
  return id
end

-- Nearly always all keys are unknown: one command looks for all of them, and another one sets them.
if call('EXISTS', unpack(KEYS, 3)) == 0 then
  local values = {}
  for i = 3, #KEYS do
    local at = 3 * i - 7
    local id, refused = add(ARGV[at])
    if refused then return refused end  -- the first one: nothing was written
    values[2 * i - 5], values[2 * i - 4] = KEYS[i], ARGV[at + 1] .. ' ' .. id .. ' ' .. ARGV[at + 2]
  end
  call('MSET', unpack(values))
  return 0
end

local function submit(task, entry, fingerprint, peer)
  local value = redis.pcall('GET', task)
  if type(value) == 'table' then return value end
  if not value then
    local id, refused = add(entry)
    if id then call('SET', task, fingerprint .. ' ' .. id .. ' ' .. peer) end
    return refused or 0
  end
  local stored_fingerprint, state, outcome = string.match(value, '^(%S*)(%s)(.*)$')
  if stored_fingerprint ~= fingerprint then return -1 end
  if state == '\n' then return outcome end
  note_peer(task, value, peer)
  return 0
end

for i = 3, #KEYS do
  local at = 3 * i - 7
  replies[i - 2] = submit(KEYS[i], ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
return replies
