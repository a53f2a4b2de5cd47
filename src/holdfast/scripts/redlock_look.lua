-- Show resources to people. KEYS: the hash of each resource.
-- Returns for each: counter, holder, ballot, time left, owner, value, and the waiters as holder, time left, owner.
-- include redlock_node.lua
local found = {}
for n, key in ipairs(KEYS) do
  local counter, holder, ballot, expires, owner = state_of(key)
  local value = holder and redis.call('HGET', key, 'value') or ''
  local line = {}
  for _, name in ipairs(redis.call('ZRANGE', key .. ':line', 0, -1)) do
    local ends, _, label = place_of(key, name)
    if ends > now then line[#line + 1] = {name, ends - now, label} end
  end
  found[n] = {counter, holder or '', ballot, math.max(0, expires - now), owner, value, line}
end
return found
