-- Remove servers with an expired lease. KEYS: the lists; ARGV: the prefix of the names of ends, the maximum of entries
-- to check. Of a longer list it checks the first entries and moves the valid ones to the end, so that the next run
-- checks others. Returns the number of removed entries.
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
