"""What Redis does for us in one step, in its own Lua.

An end is known by one name: the channel of its inbox, the key of its lease, and its entry in the lists of those who
serve an operation. A request goes to one of such a list whose lease has not run out and whose inbox somebody reads.
"""

from hashlib import sha1

ROUTE = """\
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
"""
"""Give a message to a server. KEYS: the list; ARGV: whose turn it is, the message, what the names of ends begin with.

Returns the name of the server, 0 if nobody got it, or -1 if a thousand servers were tried that are gone: then they are
off the list, and it is to be run again, so that Redis is not kept busy by a long list of them.

With a fourth ARGV it is not their turn that counts: for each such key the servers have an order of their own, which
stays when others come and go. (Of more than a thousand, the first thousand count.)

It writes nothing unless it meets a server that is gone, so that requests pass while Redis has no memory left or cannot
save. (A list that turns by LMOVE would not, and is no quicker.) Whatever else was written to the list is not the name
of an end, and gets nothing: the caller may be allowed to publish where the writer is not.
"""

ROUTE_SHA = sha1(ROUTE.encode(), usedforsecurity=False).hexdigest().encode()

ENTER = """\
local expired = redis.call('PEXPIRE', KEYS[1], ARGV[1])
if expired == 0 then redis.call('SET', KEYS[1], '', 'PX', ARGV[1]) end
for i = 2, #KEYS do
  if not redis.call('LPOS', KEYS[i], KEYS[1]) then redis.call('RPUSH', KEYS[i], KEYS[1]) end
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return 1 - expired
"""
"""Renew a lease, and enter its end where it is not listed. KEYS: the end, the lists; ARGV: milliseconds for both.

Returns 1 if there was no lease, since then the end may be missing in other lists, too. PEXPIRE comes first because it
needs no memory, and Redis lets a script that has begun to write go on: servers come and stay when it has none left.
"""

PRUNE = """\
local budget, known, removed = tonumber(ARGV[2]), {}, 0
for _, key in ipairs(KEYS) do
  if budget <= 0 then break end
  local listed, left = redis.call('LRANGE', key, 0, budget - 1), {}
  budget = budget - #listed
  for _, server in ipairs(listed) do
    if known[server] == nil then
      known[server] = string.sub(server, 1, #ARGV[1]) == ARGV[1] and redis.call('EXISTS', server) == 1
    end
    if known[server] then left[#left + 1] = server end
  end
  if #left < #listed or (budget <= 0 and redis.call('LLEN', key) > #listed) then
    if #left == 0 or type(redis.pcall('RPUSH', key, unpack(left))) == 'number' then
      redis.pcall('LTRIM', key, #listed, -1)
      removed = removed + #listed - #left
    end
  end
end
return removed
"""
"""Take servers off lists whose lease has run out. KEYS: the lists; ARGV: what names of ends begin with, and how many
entries to look at. Of a list that is longer it looks at the first ones, and puts those that stay at its end, so that
the next time it looks at others. Returns how many were taken off.
"""
