-- Decide on a proposal: ballot.vote().
-- ARGV: holder, ballot, ttl, owner, value, waiting life (0: do not wait in line), channel
-- Returns kind, counter, ballot, time left, clock, ahead, owner.
-- include redlock_node.lua
local GRANTED, TAKEN, LOW, AHEAD, BEHIND = 1, 2, 3, 4, 5
local key, holder, ballot, ttl, life =
  KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[6])
local counter, held_by, held, expires, owner = state_of(key)

local function refuse(kind)
  if life > 0 then wait_in_line(key, holder, life, ARGV[7], ARGV[4]) end
  local rank = redis.call('ZRANK', key .. ':line', holder) or redis.call('ZCARD', key .. ':line')
  return {kind, counter, held, math.max(0, expires - now), now, rank + 1, owner}
end

if held_by and held_by ~= holder then return refuse(TAKEN) end
if held_by and held == ballot then -- sent twice: the first answer stands, and its time runs on
  return {GRANTED, counter, ballot, expires - now, now, 0, ''}
end
if ballot > now + WINDOW then return refuse(AHEAD) end
if counter == 0 and ballot < now - WINDOW then return refuse(BEHIND) end
if ballot <= counter then return refuse(LOW) end

redis.call('HSET', key, 'counter', ARGV[2], 'holder', holder, 'ballot', ARGV[2], 'expires', int(now + ttl),
  'owner', ARGV[4], 'value', ARGV[5])
keep(key, ballot, now + ttl)
leave_line(key, holder)
return {GRANTED, ballot, ballot, ttl, now, 0, ''}
