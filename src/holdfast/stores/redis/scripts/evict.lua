-- Break a granted claim: it is renewed no more, and ends where its last renewal has put its end.
-- ARGV: holder, 1 to end it at once. Returns how long it stays taken; -1 if there is no such claim, or it waits.
-- include resource.lua
local me, at_once = ARGV[1], ARGV[2] == '1'
-- include broken.lua
-- include queue.lua

local gone = sweep()
local left, mark = -1, false
if q.holder == me then
  if at_once or (q.kept and not is_broken(me)) then -- nobody works under what is only kept
    vacate()
    gone, left = true, 0
  else
    left, mark = q.ends - now, not q.kept
    q.kept, counted = true, true
  end
elseif q.weight > 0 then
  local record = redis.call('HGET', claims, me)
  local mine = parse(record)
  if mine and mine.token > 0 then
    if at_once or (mine.kept and not is_broken(me)) then
      drop(me, mine)
      gone, left = true, 0
    else
      left, mark = tonumber(redis.call('ZSCORE', held, me)) - now, not mine.kept
      redis.call('HSET', claims, me, (string.gsub(record, '^(%d+ %d+) 0', '%1 1', 1)))
    end
  end
end
if mark then -- and forget those that have ended since
  local broken = ' ' .. me .. ' '
  for who in string.gmatch(redis.call('HGET', key, 'broken') or '', '%S+') do
    if who ~= me and redis.call('HGET', claims, who) then
      broken = broken .. who .. ' '
    end
  end
  redis.call('HSET', key, 'broken', broken)
end
if gone then
  wake()
end
save()
return left
