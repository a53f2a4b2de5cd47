-- Read a register; with a token enter its fence first.
-- ARGV: token, whether it is shared; or nothing
-- Returns 1, newest, exclusive, epoch, version, writer, whether there is a value, value, token, time left (-1: for ever);
-- or 0, newest, exclusive if the token is stale.
-- include register.lua
local token, shared = tonumber(ARGV[1]), ARGV[2] == '1'
if token then
  if token < (shared and exclusive or newest) then return {0, newest, exclusive} end
  newest = math.max(newest, token)
  if not shared then exclusive = math.max(exclusive, token) end
  redis.call('HSET', KEYS[1], 'newest', int(newest), 'exclusive', int(exclusive), 'format', 1)
  expire(ends)
end
local there = ends and (ends == '' or tonumber(ends) > now)
local found = there and redis.call('HMGET', KEYS[1], 'value', 'token') or {'', '0'}
local left = there and ends ~= '' and tonumber(ends) - now or -1
return {1, newest, exclusive, epoch, version, writer, there and 1 or 0, found[1], tonumber(found[2]), left}
