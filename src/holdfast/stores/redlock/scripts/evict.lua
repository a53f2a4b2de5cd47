-- Break exactly this grant: ballot.broken_by(). It is renewed no more, and its end stays where it is.
-- ARGV: holder, ballot. Returns how long it stays taken (0: it is not here), clock.
-- include node.lua
local key, holder, ballot = KEYS[1], ARGV[1], tonumber(ARGV[2])
local counter, granted, expires, line, by, facts, broken = read(key)
if not counter then return granted end
local left, reached = 0, passed(counter, ballot)
if granted > 0 and by == holder and granted == ballot then
  left = expires - now
  write(key, counter, granted, expires, line, by, facts, true)
elseif reached ~= counter then -- else a proposal that comes late would bring it here, to be renewed
  write(key, reached, granted, expires, line, by, facts, broken)
end
return {left, now}
