-- Whether somebody has broken a claim, or it was released with a time to keep: both are written down as kept, over which
-- renewals of every version are lost. The holders of those that were broken stand in the field broken, with a blank
-- before and after each.
local function is_broken(who)
  return string.find(redis.call('HGET', key, 'broken') or '', ' ' .. who .. ' ', 1, true) ~= nil
end
