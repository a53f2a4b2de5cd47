-- Break exactly this grant: ballot.broken_by(). It is renewed no more, and its end stays where it is.
-- ARGV: holder, ballot. Returns how long it stays taken (0: it is not here), clock.
-- include node.lua
local key, holder, ballot = KEYS[1], ARGV[1], tonumber(ARGV[2])
local node = read(key)
if node.err then return node end
local left = 0
if node.ballot > 0 and node.holder == holder and node.ballot == ballot then
  node.broken, left = true, node.expires - now
  write(key, node)
elseif pass(node, ballot) then -- else a proposal that comes late would bring it here, to be renewed
  write(key, node)
end
return {left, now}
