-- Prolong a granted claim. What has ended is never brought back. Looks at this claim alone: the next one to ask or to
-- release notices who else has expired.
-- ARGV: holder, ttl. Returns 1, or 0 if it is lost.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local key, me, ends = KEYS[1], ARGV[1], now + ARGV[2]
local f = redis.call('HMGET', key, 'holder', 'ends', 'kept', 'life')
local shares = not f[1]
if shares then
  local record = redis.call('HGET', key .. ':claims', me)
  local held_until = tonumber(redis.call('ZSCORE', key .. ':held', me) or 0)
  if not record or held_until <= now or string.match(record, '^%d+ %d+ 1') then
    return 0
  end
  redis.call('ZADD', key .. ':held', ends, me)
else
  if f[1] ~= me or f[3] or tonumber(f[2]) <= now then
    return 0
  end
  redis.call('HSET', key, 'ends', ends)
end
if ends + 86400000000 > tonumber(f[4]) then -- as in save() of redis_queue.lua
  local life = ends + 90000000000
  redis.call('HSET', key, 'life', life)
  for _, part in ipairs({'', ':claims', ':held', ':line', ':lives'}) do
    redis.call('PEXPIREAT', key .. part, math.floor(life / 1000))
  end
end
return 1
