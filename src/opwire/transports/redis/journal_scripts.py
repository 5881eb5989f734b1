"""The data model of `RedisJournal`, and the Lua scripts that change it atomically. All commands exist in Redis 6.2.

Each operation has a stream of tasks, with one consumer group. An entry stays in its stream, under one id, from `submit`
until its outcome is recorded; its attempts are the group's delivery count. The lease of a claim is part of the name of
its consumer (`<end>:<milliseconds>`): it has expired when the entry was idle for that time, by any reader's clock. A
released entry belongs to the consumer `released`, and is in the sorted set `later` under the time when it is due; a
released suspect is in the set `suspects`. An entry that has failed or was lost has a line in the hash `history`:
failures, losses, losses while alone, 1 for a suspect, 1 if its worker runs nothing else.

Each idempotency key has a hash: `operation`, `fingerprint`, and `entry` (the id in the stream) until there is an
`outcome`; a buried task keeps `submitted` and `request` for a replay. `waiting` names the ends at which callers wait:
the outcomes that are recorded together are published to the channel of each, as one array of MessagePack.

Tasks are submitted, claimed and recorded many at a time, since a script costs more than what it does for one task.

When Redis is out of memory, a script that has begun to write may finish. So the scripts that end a task begin with a
command that needs no memory: outcomes can be recorded even then, and every script is all or nothing.
"""

from functools import partial
from hashlib import sha1
from typing import NamedTuple

from opwire.durable.journal import Claim


class JournalKeys:
    """The names of the keys under one prefix. Journals with different prefixes are isolated from each other."""

    def __init__(self, prefix: str) -> None:
        def name(kind: str, of: str) -> bytes:
            # Callers may pass any text; text that UTF-8 cannot encode is an unknown name, not an error.
            return f"{prefix}:durable:{kind}:{of}".encode("utf-8", "surrogatepass")

        self.operations = f"{prefix}:durable:operations".encode()
        self.channels = f"{prefix}:durable:inbox:".encode()  # followed by the name of an end
        self.task = partial(name, "task")  # the hash of an idempotency key; the others are by operation id
        self.stream = partial(name, "tasks")
        self.later = partial(name, "later")  # a sorted set: released tasks
        self.suspects = partial(name, "suspects")  # a sorted set: released tasks after a lost attempt
        self.history = partial(name, "history")  # a hash: failures and losses
        self.buried = partial(name, "buried")  # a sorted set

    def read(self, name: bytes) -> str:
        """Decode a key or an id. Those of other programs may be invalid, and must not hide the others."""
        try:
            return name.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return name.decode(errors="replace")


class StreamReceipt(NamedTuple):
    """The receipt of a claim: the entry, and the consumer that claimed it."""

    id: str
    consumer: str

    @classmethod
    def of(cls, claim: Claim) -> "StreamReceipt":
        """Parse the receipt of a claim."""
        id, _, consumer = claim.receipt.partition(" ")
        return cls(id, consumer)


class Script:
    """A script, and the digest by which Redis caches it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = sha1(text.encode(), usedforsecurity=False).hexdigest()


_WAIT = """\
local function wait(hash, me)  -- without memory the end is not noted, and finds the outcome when it polls
  local ends = redis.call('HGET', hash, 'waiting') or ''
  if me ~= '' and not string.find(ends, me, 1, true) then redis.pcall('HSET', hash, 'waiting', ends .. ' ' .. me) end
end
"""

# Store tasks of one operation, unless their keys are known. KEYS: stream, set of operations, then the hash of each;
# ARGV: operation, then for each task its key, fingerprint, time of submission, request, and the end at which a caller
# waits, or ''. Returns for each the outcome, 0 if there is none yet, -1 for a key with another fingerprint, or its own
# error: its hash has another type, or there is no memory for a new task.
SUBMIT = Script(f"""\
{_WAIT}
local replies, is_new = {{}}, redis.call('EXISTS', KEYS[1]) == 0
for i = 3, #KEYS do
  local hash, at, reply = KEYS[i], 5 * i - 13, 0
  local known, fingerprint = redis.pcall('HMGET', hash, 'fingerprint', 'outcome'), ARGV[at + 1]
  if known.err then
    reply = known
  elseif known[1] then
    reply = known[1] == fingerprint and (known[2] or 0) or -1
    if reply == 0 then wait(hash, ARGV[at + 4]) end
  else
    local begun = is_new and redis.pcall('XGROUP', 'CREATE', KEYS[1], 'workers', '0', 'MKSTREAM')
    local entry = begun and begun.err and begun or redis.pcall('XADD', KEYS[1], '*', 'key', ARGV[at],
      'fingerprint', fingerprint, 'submitted', ARGV[at + 2], 'request', ARGV[at + 3])
    if type(entry) == 'table' then
      reply = {{err = string.match(entry.err, 'OOM.*') or entry.err}}  -- as outside of a script
    else
      if is_new then redis.call('SADD', KEYS[2], ARGV[1]) end
      is_new = false
      redis.call('HSET', hash, 'operation', ARGV[1], 'fingerprint', fingerprint, 'entry', entry,
        'waiting', ARGV[at + 4])
    end
  end
  replies[i - 2] = reply
end
return replies
""")

# Return the outcome of a task, if any; otherwise note the end at which a caller waits. KEYS: hash; ARGV: the end.
WAIT = Script(f"""\
{_WAIT}
local outcome = redis.call('HGET', KEYS[1], 'outcome')
if not outcome and redis.call('EXISTS', KEYS[1]) == 1 then wait(KEYS[1], ARGV[1]) end
return outcome
""")

_HISTORY = """\
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
"""

# Claim tasks, and delete idle consumers that have none.
#
# KEYS: set of operations, then stream, `later`, `suspects` and `history` of each; ARGV: our consumer, the limit, 1 to
# poll for released and lost tasks, the operation to start with, milliseconds after which a consumer is idle, 1 to claim
# suspects, the operations. Returns one suspect, or other tasks: for each the index of its operation, its id,
# attempt, fields and history, which new tasks lack.
TAKE = Script(f"""\
{_HISTORY}
local me, room, look, turn, silence = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4]), tonumber(ARGV[5])
local operations, taken = (#KEYS - 1) / 4, {{}}
local stream, later, suspects, history, place

local function turn_to(i)
  place = (turn + i) % operations
  stream, later, suspects, history = unpack(KEYS, 2 + 4 * place, 5 + 4 * place)
end

local function take(id, attempt, fields, past)
  taken[#taken + 1] = {{place, id, attempt, fields, past}}
  room = room - 1
end

local function claim(pending, lost)
  local id = pending[1]
  local entry, past = redis.call('XCLAIM', stream, 'workers', me, 0, id)[1], read(history, id)
  if not entry then
    redis.call('XACK', stream, 'workers', id)
    redis.call('HDEL', history, id)
    return
  end
  if lost then past = {{past[1], past[2] + 1, past[3] + past[5], 1, 0}} end
  if lost then write(history, id, past) end
  take(id, pending[4] + 1, entry[2], past)
end

local function released(set, most)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, most)) do
    redis.call('ZREM', set, id)
    local pending = redis.call('XPENDING', stream, 'workers', id, id, 1)[1]
    if pending then claim(pending, false) end
  end
end

local function expired(most)
  for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', stream, 'workers')) do
    local consumer = {{}}
    for i = 1, #fields, 2 do consumer[fields[i]] = fields[i + 1] end
    local lease = string.match(consumer.name, ':(%d+)$')
    if consumer.pending == 0 then
      if consumer.idle > silence then redis.call('XGROUP', 'DELCONSUMER', stream, 'workers', consumer.name) end
    elseif lease and most > #taken then
      local late = redis.call('XPENDING', stream, 'workers', 'IDLE', lease, '-', '+', 1, consumer.name)
      for _, pending in ipairs(late) do claim(pending, true) end
    end
  end
end

for i = 0, operations - 1 do
  turn_to(i)
  if redis.call('EXISTS', stream) == 0 then
    redis.call('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
    redis.call('SADD', KEYS[1], ARGV[7 + place])
  end
  local most = ARGV[6] == '1' and 1 or 0
  if look and most > #taken then released(suspects, 1) end
  if look then expired(most) end
end
if #taken > 0 then return taken end

for i = 0, operations - 1 do
  turn_to(i)
  if look and room > 0 then released(later, room) end
  if room > 0 then
    local found = redis.call('XREADGROUP', 'GROUP', 'workers', me, 'COUNT', room, 'STREAMS', stream, '>')
    for _, entry in ipairs(found and found[1][2] or {{}}) do take(entry[1], 1, entry[2]) end
  end
end
return taken
""")

_IF_OURS = """\
local ours = redis.call('XPENDING', KEYS[1], 'workers', ARGV[1], ARGV[1], 1)[1]
if not ours or ours[2] ~= ARGV[2] or ours[4] ~= tonumber(ARGV[3]) then return 0 end
"""

# Renew a lease. Returns 0 if it was lost. KEYS: stream, `history`; ARGV: id, consumer, attempt, 1 if the consumer runs
# nothing else.
RENEW = Script(f"""\
{_HISTORY}
{_IF_OURS}
redis.call('XCLAIM', KEYS[1], 'workers', ARGV[2], 0, ARGV[1], 'JUSTID')
local past, alone = read(KEYS[2], ARGV[1]), tonumber(ARGV[4])
if past[5] ~= alone then
  past[5] = alone
  write(KEYS[2], ARGV[1], past)
end
return 1
""")

# Return a task to the queue. Returns 0 if the lease was lost. KEYS: stream, `later`, `suspects`, `history`; ARGV: id,
# consumer, attempt, delay in milliseconds, the number of attempts to count, 1 if the last one failed.
RELEASE = Script(f"""\
{_HISTORY}
{_IF_OURS}
local time, past = redis.call('TIME'), read(KEYS[4], ARGV[1])
redis.call('XCLAIM', KEYS[1], 'workers', 'released', 0, ARGV[1], 'RETRYCOUNT', ARGV[5], 'JUSTID')
local suspect = ARGV[6] == '0' and past[4] or 0
redis.call('ZADD', suspect == 1 and KEYS[3] or KEYS[2],
  time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[4], ARGV[1])
write(KEYS[4], ARGV[1], {{past[1] + ARGV[6], past[2], past[3], suspect, 0}})
return 1
""")

# Record outcomes of one operation, unless their tasks have one. KEYS: stream, `later`, `suspects`, `history`, buried,
# then the hash of each task; ARGV: milliseconds to keep outcomes, the name of the channels without the end, then for
# each task its key, id, outcome, time of recording, and 1 if it is buried. Returns for each the earlier outcome, 0 if
# this one was recorded, -1 if the task is unknown, or the error of a hash of another type.
RECORD = Script("""\
local replies, tasks, ended, ids, entries, published = {}, {}, {}, {}, {}, {}
for i = 6, #KEYS do
  local hash, at = KEYS[i], 5 * i - 27
  local task, id = redis.pcall('HMGET', hash, 'outcome', 'entry', 'waiting'), ARGV[at + 1]
  local reply = task.err and task or task[1] or ended[hash] or (task[2] ~= id and -1)
  if not reply then
    reply, ended[hash], ids[#ids + 1], tasks[at] = 0, ARGV[at + 2], id, hash
    if ARGV[at + 4] == '1' then entries[at] = redis.call('XRANGE', KEYS[1], id, id)[1] end
    for me in string.gmatch(task[3] or '', '%S+') do
      published[me] = published[me] or {}
      table.insert(published[me], ARGV[at + 2])
    end
  end
  replies[i - 5] = reply
end
if #ids == 0 then return replies end

redis.call('XACK', KEYS[1], 'workers', unpack(ids))
redis.call('XDEL', KEYS[1], unpack(ids))
if redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 then
  redis.call('ZREM', KEYS[2], unpack(ids))
  redis.call('ZREM', KEYS[3], unpack(ids))
  redis.call('HDEL', KEYS[4], unpack(ids))
end
for at, hash in pairs(tasks) do
  redis.call('HSET', hash, 'outcome', ARGV[at + 2], 'entry', '', 'waiting', '')
  if ARGV[at + 4] == '1' then
    redis.call('ZADD', KEYS[5], ARGV[at + 3], ARGV[at])
    if entries[at] then redis.call('HSET', hash, unpack(entries[at][2])) end
  else
    redis.call('PEXPIRE', hash, ARGV[1])
  end
end
for me, outcomes in pairs(published) do
  redis.call('PUBLISH', ARGV[2] .. me, string.char(220, 0, #outcomes) .. table.concat(outcomes))
end
return replies
""")

# End a task that no worker has claimed. KEYS: hash, stream, `later`, `suspects`, `history`; ARGV: operation, outcome,
# milliseconds to keep it, the name of the channels without the end. Returns the earlier outcome, 0 if this one was
# recorded, or -1 if the task is claimed or unknown.
CANCEL = Script("""\
local task = redis.call('HMGET', KEYS[1], 'operation', 'outcome', 'entry', 'waiting')
if task[1] ~= ARGV[1] then return -1 end
if task[2] then return task[2] end
local id = task[3]
local pending = redis.call('XPENDING', KEYS[2], 'workers', id, id, 1)[1]
if pending and pending[2] ~= 'released' then return -1 end
redis.call('XDEL', KEYS[2], id)
redis.call('XACK', KEYS[2], 'workers', id)
redis.call('ZREM', KEYS[3], id)
redis.call('ZREM', KEYS[4], id)
redis.call('HDEL', KEYS[5], id)
redis.call('HSET', KEYS[1], 'outcome', ARGV[2], 'entry', '', 'waiting', '')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
for me in string.gmatch(task[4] or '', '%S+') do
  redis.call('PUBLISH', ARGV[4] .. me, string.char(145) .. ARGV[2])
end
return 0
""")

# Submit a buried task again. KEYS: hash, stream, buried; ARGV: key. Returns 0 if it is unknown.
REPLAY = Script("""\
local task = redis.call('HMGET', KEYS[1], 'fingerprint', 'submitted', 'request')
if not task[3] then return 0 end
local entry = redis.call('XADD', KEYS[2], '*',
  'key', ARGV[1], 'fingerprint', task[1], 'submitted', task[2], 'request', task[3])
redis.call('HDEL', KEYS[1], 'outcome', 'key', 'submitted', 'request')
redis.call('HSET', KEYS[1], 'entry', entry)
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
""")

# Delete a task that has ended. KEYS: hash, buried; ARGV: key. Returns 0 if it is unknown.
PURGE = Script("""\
if redis.call('HEXISTS', KEYS[1], 'outcome') == 0 then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
""")

# Count the waiting, claimed and buried tasks of an operation. KEYS: stream, `later`, `suspects`, buried.
COUNT = Script("""\
local length, later = redis.call('XLEN', KEYS[1]), redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3])
local pending = length > 0 and redis.call('XPENDING', KEYS[1], 'workers')[1] or 0
return {length - pending + later, pending - later, redis.call('ZCARD', KEYS[4])}
""")

# Return key, time of submission, 1 if claimed, and attempts of the oldest tasks in a stream, without their requests.
# KEYS: stream; ARGV: how many.
PENDING = Script("""\
local found = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', ARGV[1])) do
  local pending = redis.call('XPENDING', KEYS[1], 'workers', entry[1], entry[1], 1)[1]
  local claimed = pending and pending[2] ~= 'released' and 1 or 0
  found[#found + 1] = {entry[2][2], entry[2][6], claimed, pending and pending[4] or 0}
end
return found
""")

# Delete our consumers that have no tasks left. KEYS: streams; ARGV: our consumer in each.
LEAVE = Script("""\
for i, stream in ipairs(KEYS) do
  local left = redis.call('EXISTS', stream) == 1
    and redis.call('XPENDING', stream, 'workers', '-', '+', 1, ARGV[i])
  if left and #left == 0 then redis.call('XGROUP', 'DELCONSUMER', stream, 'workers', ARGV[i]) end
end
return 1
""")

SCRIPTS = (SUBMIT, WAIT, TAKE, RENEW, RELEASE, RECORD, CANCEL, REPLAY, PURGE, COUNT, PENDING, LEAVE)
