-- Stands in each redlock_*.lua: what one node keeps of a resource, and its clock. The rule is that of
-- core/ballot.py. Times and ballots are microseconds; they fit a double, but `..` and tostring would round them.
--   KEY         hash: counter, and of the grant holder, ballot, expires, owner, value
--   KEY:line    sorted set: who waits, by arrival
--   KEY:places  hash: of those who wait, "expires channel owner"
local WINDOW = 3600 * 1000000
local DAY = 24 * WINDOW

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function int(number)
  return string.format('%.0f', number)
end

-- Return counter, holder (false: nobody), ballot, expires and owner; what has expired counts as gone.
local function state_of(key)
  local state = redis.call('HMGET', key, 'counter', 'holder', 'ballot', 'expires', 'owner')
  local counter, expires = tonumber(state[1]) or 0, tonumber(state[4]) or 0
  if not state[2] or expires <= now then return counter, false, 0, 0, '' end
  return counter, state[2], tonumber(state[3]), expires, state[5]
end

-- A counter may be forgotten only when the clock exceeds it by a day: from then on older ballots are refused anyway.
local function keep(key, counter, expires)
  redis.call('PEXPIREAT', key, int(math.ceil(math.max(counter + DAY, expires) / 1000)))
end

local function wait_in_line(key, holder, life, channel, owner)
  redis.call('ZADD', key .. ':line', 'NX', int(now), holder)
  redis.call('HSET', key .. ':places', holder, int(now + life) .. ' ' .. channel .. ' ' .. owner)
  -- A place ends at its own time; the keys go a minute after the last one.
  redis.call('PEXPIRE', key .. ':line', int(life / 1000 + 60000))
  redis.call('PEXPIRE', key .. ':places', int(life / 1000 + 60000))
end

local function leave_line(key, holder)
  redis.call('HDEL', key .. ':places', holder)
  return redis.call('ZREM', key .. ':line', holder) == 1
end

-- Return until when somebody waits (0: no such place), on which channel it is told, and its owner.
local function place_of(key, holder)
  local place = redis.call('HGET', key .. ':places', holder) or ''
  local expires, channel, owner = string.match(place, '^(%d+) (%S+) (.*)$')
  return tonumber(expires) or 0, channel, owner
end
