-- Decide on a proposal: ballot.vote().
-- ARGV: holder, ballot, ttl, facts, waiting life (0: do not wait in line), channel
-- Returns kind, counter, ballot, time left, clock, ahead, facts.
-- include node.lua
local GRANTED, TAKEN, LOW, AHEAD, BEHIND = 1, 2, 3, 4, 5
local key, holder, ballot, life = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5])
local counter, granted, expires, line, by, facts, broken = read(key)
if not counter then return granted end

local refused
if granted > 0 and by ~= holder then
  refused = TAKEN
elseif granted == ballot then -- sent twice: the first answer stands, and its time runs on
  return {GRANTED, counter, ballot, expires - now, now, 0, ''}
elseif ballot > now + WINDOW then
  refused = AHEAD
elseif counter == 0 and ballot < now - WINDOW then
  refused = BEHIND
elseif ballot <= counter then
  refused = LOW
end

if refused then
  if life > 0 then
    wait_in_line(key, holder, life, ARGV[6], ARGV[4])
    if not line then write(key, counter, granted, expires, true, by, facts, broken) end
  end
  local rank = redis.call('ZRANK', key .. ':line', holder) or redis.call('ZCARD', key .. ':line')
  return {refused, counter, granted, math.max(0, expires - now), now, rank + 1, facts}
end

if line then leave_line(key, holder) end
local ttl = tonumber(ARGV[3])
write(key, ballot, ballot, now + ttl, line, holder, ARGV[4], false) -- a mark was that of an earlier ballot
return {GRANTED, ballot, ballot, ttl, now, 0, ''}
