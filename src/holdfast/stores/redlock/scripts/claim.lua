-- Decide on a proposal: ballot.vote().
-- ARGV: holder, ballot, ttl, facts, waiting life (0: do not wait in line), channel
-- Returns kind, counter, ballot, time left, clock, ahead, facts.
-- include node.lua
local GRANTED, TAKEN, LOW, AHEAD, BEHIND = 1, 2, 3, 4, 5
local key, holder, ballot, life = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5])
local node = read(key)
if node.err then return node end

local function refuse(kind)
  if life > 0 then
    wait_in_line(key, holder, life, ARGV[6], ARGV[4])
    if not node.line then
      node.line = true
      write(key, node)
    end
  end
  local rank = redis.call('ZRANK', key .. ':line', holder) or redis.call('ZCARD', key .. ':line')
  return {kind, node.counter, node.ballot, math.max(0, node.expires - now), now, rank + 1, node.facts}
end

if node.ballot > 0 and node.holder ~= holder then return refuse(TAKEN) end
if node.ballot == ballot then -- sent twice: the first answer stands, and its time runs on
  return {GRANTED, node.counter, ballot, node.expires - now, now, 0, ''}
end
if ballot > now + WINDOW then return refuse(AHEAD) end
if node.counter == 0 and ballot < now - WINDOW then return refuse(BEHIND) end
if ballot <= node.counter then return refuse(LOW) end

if node.line then leave_line(key, holder) end
local ttl = tonumber(ARGV[3])
node.counter, node.ballot, node.expires, node.holder, node.facts = ballot, ballot, now + ttl, holder, ARGV[4]
node.broken = false -- that was an earlier ballot of this holder
write(key, node)
return {GRANTED, ballot, ballot, ttl, now, 0, ''}
