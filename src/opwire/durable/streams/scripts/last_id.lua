-- Return the last id of a stream. KEYS: stream.
local function last_id()
  if redis.call('EXISTS', KEYS[1]) == 0 then return '0-0' end
  local info = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #info, 2 do if info[i] == 'last-generated-id' then return info[i + 1] end end
end
