-- The queue of one resource, as core/queue.py has it: what is decided there is decided here. Times are microseconds of
-- this server's clock. All keys begin with KEYS[1] and hence have its hash tag: one slot, also where they are not named
-- in KEYS (five names of up to 512 bytes would have to be sent with every call).
--
--   KEYS[1]        hash  token: the counter. holder, ends, claim: the exclusive holder, if there is a holder.
--                        life: until when the keys live. busy: empty, or if there is more than a holder
--                        "kept watched waiting seq weight slack unfair soonest": whether the holder has released with
--                        a time to keep or was broken (see broken.lua), whether somebody watches, how many wait, the last place in line, the weight
--                        of those that share; for slack and unfair see wake(), for soonest sweep().
--                        format: 1, written together with life. The first clients wrote none, and read none: a later
--                        format must also have a holder, and ends that is no number, over which their scripts fail.
--   …:claims       hash  holder -> "token seq kept claim" of all other claims; token 0: it waits
--   …:held         zset  those that share the resource, by the end of their lease
--   …:line         zset  those that wait, by place
--   …:lives        zset  those that wait, by the end of their waiting life
--   …:watch        zset  "channel name" of those that watch, by when they stop
--
-- A claim is "weight capacity fair detached ttl channel\nowner\nvalue"; the value may be missing.
--
-- A verb is one script, and scripts run one at a time: nothing comes between its reads and its writes. In order: read
-- the hash (resource.lua); take the fast way, where nobody else is about; check that all keys are there; sweep() what
-- has expired, so that it neither blocks nor lives on; decide on the caller; wake() those who can go now, if something
-- has ended; save(). What a user may lack the right to is called by pcall, for Redis undoes nothing half-way.
--
-- Between scripts, and between a script and the messages that it publishes, these orders would be dangerous:
--   * A claim comes twice, as its answer was lost. Its holder is found in the hash or in …:claims, and the answer is
--     its token or its place: never a second claim, and asking does not prolong a grant.
--   * A claim comes after its own withdrawal. Nothing tells it from a new one. It ends with its waiting life, or with
--     its ttl if it is granted; the client withdraws again what went unanswered.
--   * A claim passes one that waits. A fair one counts all who wait ahead of it, also those that were told and have not
--     asked yet. Only an unfair one may pass.
--   * A notice comes before the answer. The client expects it before it asks, and asks again after it has subscribed.
--   * A notice is lost. The waiter asks again within a third of its waiting life, and is told what became of it.
--   * A notice is read late, after the grant that it tells of has ended. Every answer "wait" brings the newest token,
--     and only a notice with a larger one is taken for a grant.
--   * A dead client is given the resource, for a whole ttl. wake() grants only to a client that is subscribed right
--     now, at this server, which closes the subscription of a process that has died.
--   * Keys go one by one: a slot is on the move, or keys were evicted. Then nothing is decided (TRYAGAIN). By
--     themselves all keys but …:watch go at the same moment.
--
-- What a hand-off costs is the number of its calls, and then of its functions, which are made anew on every run. So all
-- fields are read at once and written at once, nothing is counted that a field can tell, and what happens once is
-- written where it happens.
local claims, held, line, lives = key .. ':claims', key .. ':held', key .. ':line', key .. ':lives'
local DAY, HOUR, MAX, LIMIT, BATCH = 86400000000, 3600000000, 1073741824, 9007199254740992, 16

local kept, watched, waiting, place, shares, slack, unfair, soonest =
  string.match(f[4] or '', '^(%d) (%d) (%d+) (%d+) (%d+) (%d+) (%d) (%d+)$')
local q = {
  token = tonumber(f[1]) or 0, holder = f[2], ends = f[2] and tonumber(f[3]), life = tonumber(f[5]) or 0,
  kept = kept == '1', watched = watched == '1', waiting = tonumber(waiting) or 0, seq = tonumber(place) or 0,
  weight = tonumber(shares) or 0, slack = tonumber(slack) or 0, unfair = unfair == '1',
  soonest = tonumber(soonest) or LIMIT,
}

-- A key that should be there and is not: the slot is being moved to another server, key by key, and whoever shares the
-- resource still lives; or it was evicted, or deleted by hand. Nothing is decided before all of them must have ended.
if q.waiting + q.weight > 0 then
  local names = {claims}
  if q.weight > 0 then
    names[2] = held
  end
  if q.waiting > 0 then
    names[#names + 1] = line
    names[#names + 1] = lives
  end
  local found = redis.pcall('EXISTS', unpack(names)) -- on a slot that moves it may be refused
  if type(found) ~= 'number' or found < #names then
    if now < q.life - DAY then
      return redis.error_reply('TRYAGAIN keys of this resource are missing: its slot is on the move, or they were evicted')
    end
    redis.call('DEL', claims, held, line, lives)
    q.waiting, q.weight, q.soonest = 0, 0, 0
  end
end

local changed = false -- who holds is no longer who held
local counted = false -- busy is no longer what it was
local fields = {} -- of the hash, to be written; the token and busy aside
local last = 0 -- when the last of what was added will end
local fresh = false -- a key was made that has no end yet

-- Read one of the others; nil if there is no such claim.
local function parse(record)
  if not record then
    return nil
  end
  local token, seq, kept, weight, capacity, fair, ttl, channel, owner =
    string.match(record, '^(%d+) (%d+) (%d) (%d+) (%d+) (%d) %d (%d+) (%S*)\n([^\n]*)')
  return {
    token = tonumber(token), seq = tonumber(seq), kept = kept == '1', weight = tonumber(weight), record = record,
    capacity = tonumber(capacity), fair = fair == '1', ttl = tonumber(ttl), channel = channel, owner = owner,
  }
end

-- Set when one of the others ends.
local function ends_at(set, ends, who)
  redis.call('ZADD', set, ends, who)
  last, counted = math.max(last, ends), true
  if ends < q.soonest then
    q.soonest = ends
  end
end

-- Forget the exclusive holder.
local function vacate()
  redis.call('HDEL', key, 'holder')
  q.holder, q.ends, q.kept, changed, counted = nil, nil, false, true, counted or q.kept
end

-- Forget one of the others.
local function drop(who, claim)
  counted = true
  redis.call('HDEL', claims, who)
  redis.call('ZREM', lives, who)
  if redis.call('ZREM', line, who) == 1 then
    q.waiting = q.waiting - 1
  elseif redis.call('ZREM', held, who) == 1 and claim then
    q.weight, changed = q.weight - claim.weight, true
  end
end

-- Forget what has expired; return whether there was any. None of the others ends before `soonest`: whoever adds one that
-- ends earlier lowers it.
local function sweep()
  local gone = false
  if q.holder and q.ends <= now then
    vacate()
    gone = true
  end
  if q.soonest <= now then
    q.soonest, counted = LIMIT, true
    for _, ends in ipairs({held, lives}) do
      for _, who in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now)) do
        drop(who, parse(redis.call('HGET', claims, who)))
        gone = true
      end
      q.soonest = math.min(q.soonest, tonumber(redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')[2]) or LIMIT)
    end
  end
  return gone
end

-- Go through the line from its head to that rank; stop when visit() answers true. Mostly the first two do.
local function each_waiting(rank, visit)
  local from, size = 0, 2
  while from <= rank do
    local names = redis.call('ZRANGE', line, from, math.min(from + size - 1, rank))
    if #names == 0 then
      return
    end
    for i, record in ipairs(redis.call('HMGET', claims, unpack(names))) do
      if record and visit(names[i], parse(record)) then
        return
      end
    end
    from, size = from + size, BATCH
  end
end

-- Give it to a claim that fits, and that may have waited. Returns the token; or {-1, token} if that would be too large.
local function grant(who, waited, weight, ttl, seq, claim)
  local token, ends = math.max(q.token + 1, now), now + ttl
  if token >= LIMIT then
    return {-1, token}
  end
  if waited then
    drop(who)
  end
  q.token, changed, last = token, true, math.max(last, token, ends)
  if weight == MAX then
    q.holder, q.ends, fields = who, ends, {'holder', who, 'ends', ends, 'claim', claim}
  else
    redis.call('HSET', claims, who, string.format('%d %d 0 ', token, seq) .. claim)
    fresh, q.weight, q.seq = fresh or q.weight == 0, q.weight + weight, math.max(q.seq, seq)
    ends_at(held, ends, who)
  end
  return token
end

-- Tell those that would be granted if they asked now. An unfair waiter passes those who cannot go, not those who were
-- just told to. Nobody fits behind more than slack, the most that any waiter has room for beside itself; so the walk
-- ends where nobody can go, however long the line is.
--
-- The first is not only told: it is given the resource, and told its token, which spares it the question. Only if its
-- client listens here. Only one: how long a script takes must not grow with those that read. And only a fair one:
-- whoever comes now may pass the others.
local function wake()
  local base, ahead, woken, told = q.weight + (q.holder and MAX or 0), 0, 0, {}
  each_waiting(q.waiting - 1, function(who, waiter)
    if base + (q.unfair and woken or ahead) > q.slack then
      return true
    end
    if base + (waiter.fair and ahead or woken) + waiter.weight <= waiter.capacity then
      told[#told + 1] = {who, waiter}
      woken = woken + waiter.weight
    end
    ahead = ahead + waiter.weight
  end)
  for i, entry in ipairs(told) do
    local who, waiter = entry[1], entry[2]
    -- Not redis.call, here and below: a user who lacks this right must not break the script half-way.
    local listening = i == 1 and waiter.fair and redis.pcall('PUBSUB', 'NUMSUB', waiter.channel)[2] or 0
    if listening > 0 then
      local claim = string.match(waiter.record, '^%d+ %d+ %d (.*)$')
      local token = grant(who, true, waiter.weight, waiter.ttl, waiter.seq, claim)
      if type(token) == 'number' then
        who = string.format('%s %d', who, token)
      end
    end
    redis.pcall('PUBLISH', waiter.channel, who)
  end
end

-- Tell those that watch. Write everything down, and let it live until a day after its last use (and up to an hour more,
-- so that this need not be written every time). All keys go at once: one without the others would mean something else.
-- A counter that is ahead of the clock stays longer.
local function save()
  if changed and q.watched then
    local watch = key .. ':watch'
    redis.call('ZREMRANGEBYSCORE', watch, '-inf', now)
    local watchers = redis.call('ZRANGE', watch, 0, -1)
    q.watched, counted = #watchers > 0, true
    for _, watcher in ipairs(watchers) do
      local channel, name = string.match(watcher, '^(%S+) (.+)$')
      redis.pcall('PUBLISH', channel, name)
    end
  end
  local others = q.waiting + q.weight > 0
  if counted then
    local slack, unfair = q.slack, q.unfair and 1 or 0
    if q.waiting == 0 then
      slack, unfair = 0, 0
    end
    fields[#fields + 1] = 'busy'
    fields[#fields + 1] = (others or q.kept or q.watched) and string.format('%d %d %d %d %d %d %d %d',
      q.kept and 1 or 0, q.watched and 1 or 0, q.waiting, q.seq, q.weight, slack, unfair, q.soonest) or ''
  end
  local longer = last > 0 and last + DAY > q.life
  if longer then
    q.life = last + DAY + HOUR
    for _, text in ipairs({'life', q.life, 'format', 1}) do
      fields[#fields + 1] = text
    end
  end
  if changed and q.token ~= tonumber(f[1]) then
    fields[#fields + 1] = 'token'
    fields[#fields + 1] = q.token
  end
  if fields[1] then
    redis.call('HSET', key, unpack(fields))
  end
  if longer then
    redis.call('PEXPIREAT', key, math.floor(q.life / 1000))
  end
  if others and (longer or fresh) then
    for _, name in ipairs({claims, held, line, lives}) do
      redis.call('PEXPIREAT', name, math.floor(q.life / 1000))
    end
  end
end
