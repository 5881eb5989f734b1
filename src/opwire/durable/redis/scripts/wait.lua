-- Return the outcome of a task, if any; otherwise note the peer at which a caller waits. KEYS: the task; ARGV: the
-- peer.
local value = redis.call('GET', KEYS[1])
if not value then return false end
local outcome = string.match(value, '^%S*\n(.*)$')
if not outcome then note_peer(KEYS[1], value, ARGV[1]) end
return outcome
