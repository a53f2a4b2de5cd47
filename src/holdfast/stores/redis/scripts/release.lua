-- End a granted claim or withdraw a waiting one. With a time to keep, a granted one stays taken for that long.
-- ARGV: holder, time to keep. Returns 1, or 0 if there is no such claim.
-- include resource.lua
local me, keep = ARGV[1], tonumber(ARGV[2])

-- The fast way: an exclusive claim that nobody waits for.
if keep == 0 and f[2] == me and (f[4] or '') == '' and tonumber(f[3]) > now then
  redis.call('HDEL', key, 'holder')
  return 1
end

-- include broken.lua
-- include queue.lua

local gone = sweep()
local had = 0
if q.holder == me then
  had = 1
  if keep > 0 and not q.kept then
    mend(me)
    q.kept, q.ends, last, counted = true, now + keep, now + keep, true
    fields = {'ends', q.ends}
  elseif not q.kept or is_broken(me) then -- if it is only kept, the answer to its first release was lost
    vacate()
    gone = true
  end
elseif q.waiting + q.weight > 0 then
  local record = redis.call('HGET', claims, me)
  local mine = parse(record)
  if mine then
    had = 1
    if keep > 0 and mine.token > 0 and not mine.kept then
      mend(me)
      redis.call('HSET', claims, me, (string.gsub(record, '^(%d+ %d+) 0', '%1 1', 1)))
      ends_at(held, now + keep, me)
    elseif not mine.kept or is_broken(me) then
      drop(me, mine)
      gone = true
    end
  end
end
if gone then
  wake()
end
save()
return had
