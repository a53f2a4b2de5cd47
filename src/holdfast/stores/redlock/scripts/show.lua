-- Show resources to people. KEYS: of each resource.
-- Returns for each: counter, holder, ballot, time left, facts, the waiters as holder, time left, facts, and
-- whether the grant was broken.
-- include node.lua
local found = {}
for n, key in ipairs(KEYS) do
  local counter, ballot, expires, _, holder, facts, broken = read(key)
  if not counter then return ballot end
  local line = {}
  for _, name in ipairs(redis.call('ZRANGE', key .. ':line', 0, -1)) do
    local ends, _, place = place_of(key, name)
    if ends > now then line[#line + 1] = {name, ends - now, place} end
  end
  found[n] = {counter, holder, ballot, math.max(0, expires - now), facts, line, broken and 1 or 0}
end
return found
