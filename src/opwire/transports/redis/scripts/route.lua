-- Give a message to one server. KEYS: the list; ARGV: the turn, the message, the prefix of the names of ends.
--
-- Returns the name of the server, 0 if no server received it, or -1 after a thousand servers that are gone: these are
-- off the list, and the caller runs the script again, so that a long list of them does not block Redis.
--
-- An optional fourth ARGV is a sticky key, which overrides the turn: each key has an order of its own over the servers,
-- which is stable when servers come and go. (Of more than a thousand servers, the first thousand count.)
--
-- The script writes only when it finds a server that is gone, so requests pass while Redis is out of memory or cannot
-- save. (A list rotated by LMOVE would fail then, and is not faster.) An entry that is not the name of an end is
-- ignored: the caller may have permissions to publish where the writer of the entry does not.
local servers = redis.call('LLEN', KEYS[1])
if servers == 0 then return 0 end
local function give(server)
  return string.sub(server, 1, #ARGV[3]) == ARGV[3] and redis.call('EXISTS', server) == 1
    and redis.call('PUBLISH', server, ARGV[2]) > 0
end
local gone, left, sent = {}, {}, 0
if not ARGV[4] then
  local server = redis.call('LINDEX', KEYS[1], ARGV[1] % servers)
  if give(server) then return server end
  gone[server] = true
end
local listed = redis.call('LRANGE', KEYS[1], 0, 999)
local order, rank = {}, {}
for i, server in ipairs(listed) do
  order[i] = listed[(ARGV[1] + i) % #listed + 1]
  if ARGV[4] then rank[server] = redis.sha1hex(ARGV[4] .. server) end
end
if ARGV[4] then table.sort(order, function(a, b) return rank[a] < rank[b] end) end
for _, server in ipairs(order) do
  if not gone[server] and give(server) then
    sent = server
    break
  end
  gone[server] = true
end
for _, server in ipairs(listed) do
  if not gone[server] then left[#left + 1] = server end
end
if #left < #listed and (#left == 0 or type(redis.pcall('RPUSH', KEYS[1], unpack(left))) == 'number') then
  redis.pcall('LTRIM', KEYS[1], #listed, -1)
end
if sent == 0 and servers > #listed then return -1 end
return sent
