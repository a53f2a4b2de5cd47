-- The queue of one resource, as core/queue.py has it: what is decided there is decided here. Times are microseconds of
-- this server's clock. All keys begin with KEYS[1] and hence have its hash tag: one slot, also where they are not named
-- in KEYS (five names of up to 512 bytes would have to be sent with every call).
--
--   KEYS[1]        hash  token: the counter. holder, ends, claim, kept: the exclusive holder, if there is a holder.
--                        others: there are more claims, in the keys below. seq: the last place in line.
--                        weight: of those that share. slack, unfair: see wake(). watched: somebody watches.
--                        busy: kept, others or watched; the fast ways look at it alone. life: until when the keys live.
--   …:claims       hash  holder -> "token seq kept claim" of all other claims; token 0: it waits
--   …:held         zset  those that share the resource, by the end of their lease
--   …:line         zset  those that wait, by place
--   …:lives        zset  those that wait, by the end of their waiting life
--   …:watch        zset  "channel bell" of those that watch, by when they stop
--
-- A claim is "weight capacity fair detached ttl channel\nowner\nvalue"; the value may be missing.
local key = KEYS[1]
local claims, held, line, lives = key .. ':claims', key .. ':held', key .. ':line', key .. ':lives'
local DAY, HOUR, MAX, LIMIT, BATCH = 86400000000, 3600000000, 1073741824, 9007199254740992, 16

-- Lua's own way to write a number turns microseconds into 1.76e+15. (redis.call writes its arguments in full.)
local function int(number)
  return string.format('%.0f', number)
end

local f = redis.call('HMGET', key, 'token', 'holder', 'ends', 'claim', 'kept', 'others', 'weight', 'slack', 'unfair',
  'watched', 'life')
local q = {
  token = tonumber(f[1]) or 0, holder = f[2], ends = f[2] and tonumber(f[3]), claim = f[4], kept = f[5],
  others = f[6], weight = tonumber(f[7]) or 0, slack = tonumber(f[8]) or 0, unfair = f[9] == '1', watched = f[10],
  life = tonumber(f[11]) or 0,
}
local changed = false -- who holds is no longer who held

-- Read one of the others; nil if there is no such claim.
local function parse(record)
  if not record then
    return nil
  end
  local token, seq, kept, weight, capacity, fair, channel =
    string.match(record, '^(%d+) (%d+) (%d) (%d+) (%d+) (%d) %d %d+ (%S*)')
  return {
    token = tonumber(token), seq = tonumber(seq), kept = kept == '1', weight = tonumber(weight),
    capacity = tonumber(capacity), fair = fair == '1', channel = channel,
  }
end

local function granted()
  return q.weight + (q.holder and MAX or 0)
end

-- Forget the exclusive holder.
local function vacate()
  redis.call('HDEL', key, 'holder', 'kept')
  q.holder, q.ends, q.claim, q.kept, changed = nil, nil, nil, nil, true
end

-- Forget one of the others.
local function drop(who)
  local claim = parse(redis.call('HGET', claims, who))
  redis.call('HDEL', claims, who)
  redis.call('ZREM', line, who)
  redis.call('ZREM', lives, who)
  if redis.call('ZREM', held, who) == 1 and claim then
    q.weight, changed = q.weight - claim.weight, true
  end
end

-- Forget what has expired; tell whether there was any.
local function sweep(now)
  local gone = false
  if q.holder and q.ends <= now then
    vacate()
    gone = true
  end
  if q.others then
    for _, ends in ipairs({held, lives}) do
      for _, who in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now)) do
        drop(who)
        gone = true
      end
    end
  end
  return gone
end

-- Go through the line from its head; stop when visit() answers true.
local function each_waiting(last, visit)
  for from = 0, last, BATCH do
    local names = redis.call('ZRANGE', line, from, math.min(from + BATCH - 1, last))
    if #names == 0 then
      return
    end
    for i, record in ipairs(redis.call('HMGET', claims, unpack(names))) do
      if record and visit(names[i], parse(record)) then
        return
      end
    end
  end
end

-- Tell those that would be granted if they asked now. An unfair waiter passes those who cannot go, not those who were
-- just told to. Nobody fits behind more than slack, the most that any waiter has room for beside itself; so the walk
-- ends where nobody can go, however long the line is.
local function wake()
  local base, ahead, woken = granted(), 0, 0
  each_waiting(q.others and redis.call('ZCARD', line) - 1 or -1, function(who, waiter)
    if base + (q.unfair and woken or ahead) > q.slack then
      return true
    end
    if base + (waiter.fair and ahead or woken) + waiter.weight <= waiter.capacity then
      redis.pcall('PUBLISH', waiter.channel, who) -- a user without this right must not break the script half-way
      woken = woken + waiter.weight
    end
    ahead = ahead + waiter.weight
  end)
end

-- Tell those that watch who holds.
local function tell(now)
  local watch = key .. ':watch'
  redis.call('ZREMRANGEBYSCORE', watch, '-inf', now)
  local names = redis.call('ZRANGE', watch, 0, -1)
  if #names == 0 then
    redis.call('HDEL', key, 'watched')
    q.watched = nil
  end
  for _, name in ipairs(names) do
    local channel, bell = string.match(name, '^(%S+) (.+)$')
    redis.pcall('PUBLISH', channel, bell)
  end
end

-- Write down what the fast ways look at, and let everything live until a day after its last use (and up to an hour more,
-- so that this need not be written every time). All keys go at the same moment: one without the others would mean
-- something else. A counter that is ahead of the clock stays longer.
local function save(now)
  if redis.call('EXISTS', key) == 0 then
    return
  end
  if changed and q.watched then
    tell(now)
  end
  local last = math.max(now, q.token, q.ends or 0)
  local waiting, sharing = redis.call('ZCARD', line), redis.call('ZCARD', held)
  local others = waiting + sharing > 0
  if others then
    if waiting == 0 then
      q.slack, q.unfair = 0, false
    end
    redis.call('HSET', key, 'others', 1, 'weight', q.weight, 'slack', q.slack, 'unfair', q.unfair and 1 or 0)
    for _, ends in ipairs({held, lives}) do
      last = math.max(last, tonumber(redis.call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]) or 0)
    end
  else
    redis.call('HDEL', key, 'others', 'seq', 'weight', 'slack', 'unfair')
  end
  if others or q.kept or q.watched then
    redis.call('HSET', key, 'busy', 1)
  else
    redis.call('HDEL', key, 'busy')
  end
  if last + DAY > q.life then
    q.life = last + DAY + HOUR
    redis.call('HSET', key, 'life', q.life)
    redis.call('PEXPIREAT', key, math.floor(q.life / 1000))
  end
  if others then
    for _, name in ipairs({claims, held, line, lives}) do
      redis.call('PEXPIREAT', name, math.floor(q.life / 1000))
    end
  end
end
