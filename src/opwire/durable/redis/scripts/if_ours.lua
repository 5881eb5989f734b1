-- End the script with 0 if an entry has another owner. KEYS[1]: stream; ARGV: id, consumer, attempt.
local ours = redis.call('XPENDING', KEYS[1], 'workers', ARGV[1], ARGV[1], 1)[1]
if not ours or ours[2] ~= ARGV[2] or ours[4] ~= tonumber(ARGV[3]) then return 0 end
