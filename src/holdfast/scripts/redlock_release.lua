-- Give back every grant of the holder up to the ballot: ballot.left_by(). A late release must not free a later grant.
-- ARGV: holder, ballot, how long to stay in line (0: leave it, and call who is first there), channel, owner
-- Returns whether there was anything, clock.
-- include redlock_node.lua
local key, holder, ballot, stay = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local counter, held_by, held, expires = state_of(key)
local had = false

if stay > 0 then wait_in_line(key, holder, stay, ARGV[4], ARGV[5]) else had = leave_line(key, holder) end
if held_by == holder and held <= ballot then
  redis.call('HDEL', key, 'holder', 'ballot', 'expires', 'owner', 'value')
  held_by, expires, had = false, 0, true
end
-- A proposal that this release has overtaken is refused from now on, instead of becoming a ghost.
if ballot > counter and ballot <= now + WINDOW and (counter > 0 or ballot >= now - WINDOW) then
  redis.call('HSET', key, 'counter', ARGV[2])
  keep(key, ballot, expires)
end

while stay == 0 and not held_by do
  local first = redis.call('ZRANGE', key .. ':line', 0, 0)[1]
  if not first then break end
  local ends, channel = place_of(key, first)
  if ends > now then
    redis.pcall('PUBLISH', channel, first) -- a user without this right must not break the script half-way
    break
  end
  leave_line(key, first)
end
return {had and 1 or 0, now}
