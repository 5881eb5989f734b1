-- Renew a lease. Returns 0 if it was lost. KEYS: stream, `history`; ARGV: id, consumer, attempt, 1 if the consumer runs
-- nothing else.
redis.call('XCLAIM', KEYS[1], 'workers', ARGV[2], 0, ARGV[1], 'JUSTID')
local past, alone = read(KEYS[2], ARGV[1]), tonumber(ARGV[4])
if past[5] ~= alone then
  past[5] = alone
  write(KEYS[2], ARGV[1], past)
end
return 1
