-- Delete our consumers that have no tasks left. KEYS: streams; ARGV: our consumer in each.
for i, stream in ipairs(KEYS) do
  local pending = redis.call('EXISTS', stream) == 1
    and redis.call('XPENDING', stream, 'workers', '-', '+', 1, ARGV[i])
  if pending and #pending == 0 then redis.call('XGROUP', 'DELCONSUMER', stream, 'workers', ARGV[i]) end
end
return 1
