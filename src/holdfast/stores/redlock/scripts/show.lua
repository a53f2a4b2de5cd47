-- Show resources to people. KEYS: of each resource.
-- Returns for each: counter, holder, ballot, time left, facts, the waiters as holder, time left, facts, and
-- whether the grant was broken.
-- include node.lua
local found = {}
for n, key in ipairs(KEYS) do
  local node, line = read(key), {}
  if node.err then return node end
  for _, name in ipairs(redis.call('ZRANGE', key .. ':line', 0, -1)) do
    local ends, _, facts = place_of(key, name)
    if ends > now then line[#line + 1] = {name, ends - now, facts} end
  end
  found[n] = {node.counter, node.holder, node.ballot, math.max(0, node.expires - now), node.facts, line, node.broken and 1 or 0}
end
return found
