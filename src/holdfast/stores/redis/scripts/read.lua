-- Read a fenced register; with a token enter its fence first.
-- ARGV: token, whether it is shared; or nothing
-- Returns {1}, {1, value, token}, or {0, newest, exclusive} if the token is stale.
-- include fence.lua
local ends = tonumber(f[3])
local there = f[3] and (not ends or ends > now)
if token then
  if not enter() then
    return {0, newest, exclusive}
  end
  if not there then
    expire(now)
  end
end
if not there then
  return {1}
end
local found = redis.call('HMGET', KEYS[1], 'value', 'token')
return {1, found[1], tonumber(found[2])}
