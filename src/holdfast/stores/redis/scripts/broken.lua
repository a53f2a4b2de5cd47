-- Whether somebody has broken a claim, or it was released with a time to keep: both are written down as kept, over which
-- renewals of every version are lost. The holders of those that were broken stand in the field broken, with a blank
-- before and after each.
local function is_broken(who)
  return string.find(redis.call('HGET', key, 'broken') or '', ' ' .. who .. ' ', 1, true) ~= nil
end

-- Forget that a claim was broken, for it is kept by its own release. It stands there still if it had ended, and its holder
-- has asked again: a claim that is granted does not look here.
local function mend(who)
  local broken = redis.call('HGET', key, 'broken')
  local from, to = string.find(broken or '', ' ' .. who .. ' ', 1, true)
  if from then
    redis.call('HSET', key, 'broken', string.sub(broken, 1, from) .. string.sub(broken, to + 1))
  end
end
