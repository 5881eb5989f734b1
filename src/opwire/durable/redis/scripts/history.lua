-- Read and write the line of an entry in `history`.
local function read(history, id)
  local line, past = redis.call('HGET', history, id), {0, 0, 0, 0, 0}
  if line then
    local i = 1
    for number in string.gmatch(line, '%d+') do past[i] = tonumber(number) i = i + 1 end
  end
  return past
end

local function write(history, id, past)
  local line = table.concat(past, ' ')
  if line == '0 0 0 0 0' then redis.call('HDEL', history, id) else redis.call('HSET', history, id, line) end
end
