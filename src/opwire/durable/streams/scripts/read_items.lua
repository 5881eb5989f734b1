-- Read the entries after an id. KEYS: stream; ARGV: id, limit. Returns false if entries after it may be gone.
if ARGV[1] ~= '0-0' and #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 and last_id() ~= ARGV[1] then
  return false
end
return redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
