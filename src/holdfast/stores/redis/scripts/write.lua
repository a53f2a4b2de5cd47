-- Write a fenced register.
-- ARGV: token, whether it is shared, the value, how many milliseconds to keep it (empty: for ever)
-- Returns {1}, or {0, newest, exclusive} if it is stale.
-- include fence.lua
if not enter() then
  return {0, newest, exclusive}
end
local ends = ARGV[4] ~= '' and now + tonumber(ARGV[4]) or nil
redis.call('HSET', KEYS[1], 'value', ARGV[3], 'token', ARGV[1], 'ends', ends and string.format('%.0f', ends) or '')
expire(ends)
return {1}
