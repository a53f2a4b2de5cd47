-- Give back every grant of the holder up to the ballot: ballot.left_by(). A late release must not free a later grant.
-- ARGV: holder, ballot, how long to stay in line (0: leave it, and tell whoever is first), channel, facts
-- Returns whether there was anything, clock.
-- include node.lua
local key, holder, ballot, stay = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local counter, granted, expires, line, by, facts, broken = read(key)
if not counter then return granted end
local had, changed = false, false

if stay > 0 then
  wait_in_line(key, holder, stay, ARGV[4], ARGV[5])
  line, changed = true, true
elseif line then
  had = leave_line(key, holder)
end
if granted > 0 and by == holder and granted <= ballot then
  granted, expires, by, facts, broken = 0, 0, '', '', false
  had, changed = true, true
end
-- A proposal that this release has overtaken must not become a ghost.
local reached = passed(counter, ballot)
changed = changed or reached ~= counter

while line and stay == 0 and granted == 0 do
  local first = redis.call('ZRANGE', key .. ':line', 0, 0)[1]
  if not first then
    line, changed = false, true
    break
  end
  local ends, channel = place_of(key, first)
  if ends > now then
    redis.pcall('PUBLISH', channel, first) -- a user without this right must not break the script half-way
    break
  end
  leave_line(key, first)
end
if changed then write(key, reached, granted, expires, line, by, facts, broken) end
return {had and 1 or 0, now}
