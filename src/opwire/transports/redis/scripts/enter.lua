-- Renew a lease, and add its end to the lists that lack it. KEYS: the end, the lists; ARGV: milliseconds for both.
--
-- Returns 1 if the lease was missing: then other lists may lack the end, too. PEXPIRE comes first because it needs no
-- memory, and Redis lets a script that has begun to write finish: servers can register when it is out of memory.
local expired = redis.call('PEXPIRE', KEYS[1], ARGV[1])
if expired == 0 then redis.call('SET', KEYS[1], '', 'PX', ARGV[1]) end
for i = 2, #KEYS do
  if not redis.call('LPOS', KEYS[i], KEYS[1]) then redis.call('RPUSH', KEYS[i], KEYS[1]) end
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return 1 - expired
