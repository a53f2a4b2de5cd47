-- End a granted claim or withdraw a waiting one. With a time to keep, a granted one stays taken for that long.
-- ARGV: holder, time to keep. Returns 1, or 0 if there is no such claim.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local me, keep = ARGV[1], tonumber(ARGV[2])

-- The fast way: an exclusive claim that nobody waits for.
if keep == 0 then
  local f = redis.call('HMGET', KEYS[1], 'holder', 'ends', 'busy')
  if f[1] == me and not f[3] and tonumber(f[2]) > now then
    redis.call('HDEL', KEYS[1], 'holder')
    return 1
  end
end

-- include redis_queue.lua

local gone = sweep(now)
local had = 0
if q.holder == me then
  had = 1
  if keep > 0 and not q.kept then
    q.kept, q.ends = '1', now + keep
    redis.call('HSET', key, 'kept', 1, 'ends', q.ends)
  elseif not q.kept then -- if it is, the answer to its first release was lost
    vacate()
    gone = true
  end
elseif q.others then
  local record = redis.call('HGET', claims, me)
  if record then
    local mine = parse(record)
    had = 1
    if keep > 0 and mine.token > 0 and not mine.kept then
      redis.call('HSET', claims, me, (string.gsub(record, '^(%d+ %d+) 0', '%1 1', 1)))
      redis.call('ZADD', held, now + keep, me)
    elseif not mine.kept then
      drop(me)
      gone = true
    end
  end
end
if gone then
  wake()
end
save(now)
return had
