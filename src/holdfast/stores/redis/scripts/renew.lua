-- Prolong a granted claim. What has ended is never brought back. Reads this claim alone: the next one to ask or to
-- release notices who else has expired.
-- ARGV: holder, ttl. Returns 1, or 0 if it is lost.
-- include resource.lua
local me, ends = ARGV[1], now + ARGV[2]
if f[2] then
  if f[2] ~= me or string.match(f[4] or '', '^1') or tonumber(f[3]) <= now then
    return 0
  end
  redis.call('HSET', key, 'ends', ends)
else
  local record = redis.call('HGET', key .. ':claims', me)
  local held_until = tonumber(redis.call('ZSCORE', key .. ':held', me) or 0)
  local weight = tonumber(string.match(f[4] or '', '^%d %d %d+ %d+ (%d+)') or 0)
  if weight > 0 and redis.pcall('EXISTS', key .. ':claims', key .. ':held') ~= 2 then -- see queue.lua
    return redis.error_reply('TRYAGAIN keys of this resource are missing: its slot is on the move, or they were evicted')
  end
  if not record or held_until <= now or string.match(record, '^%d+ %d+ 1') then
    return 0
  end
  redis.call('ZADD', key .. ':held', ends, me)
  local counts, soonest = string.match(f[4] or '', '^(.*) (%d+)$')
  if counts and ends < tonumber(soonest) then -- the clock was set back
    redis.call('HSET', key, 'busy', string.format('%s %d', counts, ends))
  end
end
if ends + 86400000000 > tonumber(f[5]) then -- as in save() of queue.lua
  local life = ends + 90000000000
  redis.call('HSET', key, 'life', life, 'format', 1)
  for _, part in ipairs({'', ':claims', ':held', ':line', ':lives'}) do
    redis.call('PEXPIREAT', key .. part, math.floor(life / 1000))
  end
end
return 1
