-- Note the peer `me`, at which a caller waits, in the value of an open task. Without memory it is not noted, and finds
-- the outcome when it polls.
local function note_peer(task, value, me)
  if me ~= '' and not string.find(value, me, 1, true) then redis.pcall('SET', task, value .. ' ' .. me) end
end
