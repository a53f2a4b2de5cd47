-- Renew exactly these grants: ballot.prolonged(). What has ended is never re-created.
-- KEYS: of each resource. ARGV: holder, ballot, ttl of each. Returns the clock, then 1 or 0 for each.
-- include redlock_node.lua
local answers = {now}
for n, key in ipairs(KEYS) do
  local node = read(key)
  local mine = node.ballot > 0 and node.holder == ARGV[3 * n - 2] and node.ballot == tonumber(ARGV[3 * n - 1])
  if mine then
    node.expires = now + tonumber(ARGV[3 * n])
    write(key, node)
  end
  answers[n + 1] = mine and 1 or 0
end
return answers
