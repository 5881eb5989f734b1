"""What Redis does for durable calls in one step, in its own Lua. Redis 6.2 knows every command here.

For each operation there is a stream of tasks, with one consumer group. An entry stays in its stream, under one id, from
`submit` until its outcome is recorded; its attempts are how often the group has delivered it. The lease of a claim is
in the name of its consumer (`<end>:<milliseconds>`): it has run out when the entry was idle for so long, whoever looks.
What was released belongs to the consumer `nobody`, and is in the sorted set `later` under the time when it is due.

For each idempotency key there is a hash: `operation`, `fingerprint`, and `entry` (the id in the stream) until there is
an `outcome`; a buried task keeps `submitted` and `request` for a replay. A field `>channel` is somebody who waits.

When Redis has no memory left, a script that has begun to write is let finish. So what ends a task begins with a command
that needs none: outcomes can be recorded then, too, and nothing is ever half done.
"""

from hashlib import sha1
from typing import NamedTuple


class Names:
    """The names of the keys, all under one prefix: journals with different prefixes do not meet."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}:durable:"
        self.operations = f"{self._prefix}operations".encode()

    def task(self, key: str) -> bytes:
        """The hash of a task."""
        return self._name("task", key)

    def stream(self, operation_id: str) -> bytes:
        """The stream of an operation's tasks."""
        return self._name("tasks", operation_id)

    def later(self, operation_id: str) -> bytes:
        """The sorted set of what was released."""
        return self._name("later", operation_id)

    def buried(self, operation_id: str) -> bytes:
        """The sorted set of what was given up."""
        return self._name("buried", operation_id)

    def _name(self, kind: str, name: str) -> bytes:
        # Anybody may ask for any text. One that has no UTF-8 is the name of nothing, and no reason to fail otherwise.
        return f"{self._prefix}{kind}:{name}".encode("utf-8", "surrogatepass")


class Script(NamedTuple):
    """A script, and the digest by which Redis remembers it."""

    text: str
    digest: str


def _script(text: str) -> Script:
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


SUBMIT = _script("""\
local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'outcome')
if known[1] then return known[1] == ARGV[3] and (known[2] or 0) or -1 end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('XGROUP', 'CREATE', KEYS[2], 'workers', '0', 'MKSTREAM')
  redis.call('SADD', KEYS[3], ARGV[2])
end
local entry = redis.call('XADD', KEYS[2], '*',
  'key', ARGV[1], 'fingerprint', ARGV[3], 'submitted', ARGV[4], 'request', ARGV[5])
redis.call('HSET', KEYS[1], 'operation', ARGV[2], 'fingerprint', ARGV[3], 'entry', entry)
return 0
""")
"""Keep a task, unless its key is known.

KEYS: hash, stream, set of operations; ARGV: key, operation, fingerprint, time of submission, request. Returns the
outcome, or 0 if there is none yet, or -1 if the key is known with another fingerprint.
"""

WAIT = _script("""\
local outcome = redis.call('HGET', KEYS[1], 'outcome')
if not outcome and redis.call('EXISTS', KEYS[1]) == 1 then redis.pcall('HSET', KEYS[1], '>' .. ARGV[1], '') end
return outcome
""")
"""The outcome of a task, if any; otherwise it will be published. KEYS: hash; ARGV: channel.

Without memory to remember the channel it is not, and whoever waits finds it when asking again.
"""

TAKE = _script("""\
local me, room, look, turn, silence = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4]), tonumber(ARGV[5])
local operations, taken = (#KEYS - 1) / 2, {}

local function take(place, id, attempt, fields)
  taken[#taken + 1] = {place, id, attempt, fields}
  room = room - 1
end

local function claim(place, stream, pending)
  local entry = redis.call('XCLAIM', stream, 'workers', me, 0, pending[1])[1]
  if entry then
    take(place, pending[1], pending[4] + 1, entry[2])
  else
    redis.call('XACK', stream, 'workers', pending[1])
  end
end

local function released(place, stream, later)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', later, '-inf', now, 'LIMIT', 0, room)) do
    redis.call('ZREM', later, id)
    local pending = redis.call('XPENDING', stream, 'workers', id, id, 1)[1]
    if pending then claim(place, stream, pending) end
  end
end

local function expired(place, stream)
  for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', stream, 'workers')) do
    local consumer = {}
    for i = 1, #fields, 2 do consumer[fields[i]] = fields[i + 1] end
    local lease = string.match(consumer.name, ':(%d+)$')
    if consumer.pending == 0 then
      if consumer.idle > silence then redis.call('XGROUP', 'DELCONSUMER', stream, 'workers', consumer.name) end
    elseif lease and room > 0 then
      local late = redis.call('XPENDING', stream, 'workers', 'IDLE', lease, '-', '+', room, consumer.name)
      for _, pending in ipairs(late) do claim(place, stream, pending) end
    end
  end
end

local function fresh(place, stream)
  local found = redis.call('XREADGROUP', 'GROUP', 'workers', me, 'COUNT', room, 'STREAMS', stream, '>')
  if found then
    for _, entry in ipairs(found[1][2]) do take(place, entry[1], 1, entry[2]) end
  end
end

for i = 0, operations - 1 do
  local place = (turn + i) % operations
  local stream, later = KEYS[2 + 2 * place], KEYS[3 + 2 * place]
  if redis.call('EXISTS', stream) == 0 then
    redis.call('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
    redis.call('SADD', KEYS[1], ARGV[6 + place])
  end
  if look and room > 0 then released(place, stream, later) end
  if look then expired(place, stream) end
  if room > 0 then fresh(place, stream) end
end
return taken
""")
"""Claim tasks, and remove consumers that have none and were not heard of for long.

KEYS: set of operations, then stream and `later` of each; ARGV: our name as a consumer, how many, whether to look for
what was released or lost, whose turn it is to be first, how many milliseconds are long, the operations. Returns for
each task the place of its operation, its id, the attempt, and its fields.
"""

_IF_OURS = """\
local ours = redis.call('XPENDING', KEYS[1], 'workers', ARGV[1], ARGV[1], 1)[1]
if not ours or ours[2] ~= ARGV[2] or ours[4] ~= tonumber(ARGV[3]) then return 0 end
"""

RENEW = _script(f"""\
{_IF_OURS}
redis.call('XCLAIM', KEYS[1], 'workers', ARGV[2], 0, ARGV[1], 'JUSTID')
return 1
""")
"""Begin a lease anew. KEYS: stream; ARGV: id, consumer, attempt. Returns 0 if it was lost."""

RELEASE = _script(f"""\
{_IF_OURS}
local time = redis.call('TIME')
redis.call('XCLAIM', KEYS[1], 'workers', 'nobody', 0, ARGV[1], 'RETRYCOUNT', ARGV[5], 'JUSTID')
redis.call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4], ARGV[1])
return 1
""")
"""Give a task back.

KEYS: stream, `later`; ARGV: id, consumer, attempt, delay in milliseconds, how many attempts to count. Returns 0 if the
lease was lost.
"""

RECORD = _script("""\
local known = redis.call('HMGET', KEYS[1], 'outcome', 'entry')
if known[1] then return known[1] end
if known[2] ~= ARGV[2] then return -1 end
local buried = ARGV[6] == '1'
local entry = buried and redis.call('XRANGE', KEYS[2], ARGV[2], ARGV[2])[1]
redis.call('XACK', KEYS[2], 'workers', ARGV[2])
redis.call('XDEL', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[3], ARGV[2])
redis.call('HDEL', KEYS[1], 'entry')
redis.call('HSET', KEYS[1], 'outcome', ARGV[3])
if buried then
  redis.call('ZADD', KEYS[4], ARGV[5], ARGV[1])
  if entry then redis.call('HSET', KEYS[1], unpack(entry[2])) end
else
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 1) == '>' then
    redis.call('HDEL', KEYS[1], field)
    redis.call('PUBLISH', string.sub(field, 2), ARGV[3])
  end
end
return 0
""")
"""End a task, unless it has ended.

KEYS: hash, stream, `later`, buried; ARGV: key, id, outcome, milliseconds to keep it, time of recording, whether it is
buried. Returns the outcome that stands, 0 if it is this one, or -1 if the task is gone.
"""

REPLAY = _script("""\
local task = redis.call('HMGET', KEYS[1], 'fingerprint', 'submitted', 'request')
if not task[3] then return 0 end
local entry = redis.call('XADD', KEYS[2], '*',
  'key', ARGV[1], 'fingerprint', task[1], 'submitted', task[2], 'request', task[3])
redis.call('HDEL', KEYS[1], 'outcome', 'key', 'submitted', 'request')
redis.call('HSET', KEYS[1], 'entry', entry)
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
""")
"""Submit a buried task again. KEYS: hash, stream, buried; ARGV: key. Returns 0 if there is none."""

PURGE = _script("""\
if redis.call('HEXISTS', KEYS[1], 'outcome') == 0 then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
""")
"""Forget a task that has ended. KEYS: hash, buried; ARGV: key. Returns 0 if there is none."""

COUNT = _script("""\
local length, later = redis.call('XLEN', KEYS[1]), redis.call('ZCARD', KEYS[2])
local pending = length > 0 and redis.call('XPENDING', KEYS[1], 'workers')[1] or 0
return {length - pending + later, pending - later, redis.call('ZCARD', KEYS[3])}
""")
"""How much there is of an operation: what waits, is claimed, is buried. KEYS: stream, `later`, buried."""

LEAVE = _script("""\
for i, stream in ipairs(KEYS) do
  local left = redis.call('EXISTS', stream) == 1
    and redis.call('XPENDING', stream, 'workers', '-', '+', 1, ARGV[i])
  if left and #left == 0 then redis.call('XGROUP', 'DELCONSUMER', stream, 'workers', ARGV[i]) end
end
return 1
""")
"""Take our name off the streams of which we have no task left. KEYS: streams; ARGV: our name in each."""

SCRIPTS = (SUBMIT, WAIT, TAKE, RENEW, RELEASE, RECORD, REPLAY, PURGE, COUNT, LEAVE)
