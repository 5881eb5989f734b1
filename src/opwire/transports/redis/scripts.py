"""What Redis does for us in one step, in its own Lua.

An end is known by one name: the channel of its inbox, the key of its lease, and its entry in the lists of those who
serve an operation. A request goes to one of such a list whose lease has not run out and whose inbox somebody reads.
"""

from hashlib import sha1

ROUTE = """\
local servers, ranked = redis.call('LLEN', KEYS[1]), nil
if ARGV[3] then
  ranked = redis.call('LRANGE', KEYS[1], 0, -1)
  table.sort(ranked, function(a, b) return redis.sha1hex(ARGV[3] .. a) < redis.sha1hex(ARGV[3] .. b) end)
end
local gone, sent = {}, 0
for i = 0, servers - 1 do
  local server = ranked and ranked[i + 1] or redis.call('LINDEX', KEYS[1], (ARGV[1] + i) % servers)
  if redis.call('EXISTS', server) == 1 and redis.call('PUBLISH', server, ARGV[2]) > 0 then
    sent = 1
    break
  end
  gone[#gone + 1] = server
end
for _, server in ipairs(gone) do redis.pcall('LREM', KEYS[1], 0, server) end
return sent
"""
"""Give a message to a server. KEYS: the list; ARGV: whose turn it is, the message. Returns 1, or 0 if nobody got it.

With a third ARGV it is not their turn that counts: for each such key the servers have an order of their own, which
stays when others come and go.

It writes nothing unless it meets a server that is gone, so that requests pass while Redis has no memory left or cannot
save. (A list that turns by LMOVE would not, and is no quicker.)
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
