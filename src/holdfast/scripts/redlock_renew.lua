-- Renew exactly these grants: ballot.prolonged(). What has ended is never re-created.
-- KEYS: the hash of each resource. ARGV: holder, ballot, ttl of each. Returns the clock, then 1 or 0 for each.
-- include redlock_node.lua
local answers = {now}
for n, key in ipairs(KEYS) do
  local counter, held_by, held = state_of(key)
  local holder, ballot, ttl = ARGV[3 * n - 2], tonumber(ARGV[3 * n - 1]), tonumber(ARGV[3 * n])
  local mine = held_by == holder and held == ballot
  if mine then
    redis.call('HSET', key, 'expires', int(now + ttl))
    keep(key, counter, now + ttl)
  end
  answers[n + 1] = mine and 1 or 0
end
return answers
