-- Return key, time of submission, 1 if claimed, and attempts of the oldest tasks in a stream, without their requests.
-- Entries of other programs are skipped. KEYS: stream; ARGV: how many.
local rows = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', ARGV[1])) do
  local valid, task = pcall(cjson.decode, string.match(entry[2][2], '^[^\n]*'))
  if valid and type(task) == 'table' and type(task[1]) == 'string' and type(task[3]) == 'number' then
    local pending = redis.call('XPENDING', KEYS[1], 'workers', entry[1], entry[1], 1)[1]
    local claimed = pending and pending[2] ~= 'released' and 1 or 0
    rows[#rows + 1] = {task[1], task[3], claimed, pending and pending[4] or 0}
  end
end
return rows
