-- Note `peer`, at which a caller waits, in the value of an open task. Without memory it is not noted, and finds
-- the outcome when it polls.
local function note_peer(task, value, peer)
  if peer ~= '' and not string.find(value, peer, 1, true) then redis.pcall('SET', task, value .. ' ' .. peer) end
end
