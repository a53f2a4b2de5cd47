-- Renew exactly these grants: ballot.prolonged(). What has ended is never re-created.
-- KEYS: of each resource. ARGV: holder, ballot, ttl of each. Returns the clock, then for each 1, 0,
-- 2 if it was broken, or an error.
-- include node.lua
local answers = {now}
for n, key in ipairs(KEYS) do
  local node = read(key)
  if node.err then
    answers[n + 1] = node -- of this one alone
  elseif node.ballot > 0 and node.holder == ARGV[3 * n - 2] and node.ballot == tonumber(ARGV[3 * n - 1]) then
    if not node.broken then
      -- Never nearer: this may be a late copy, and the holder has since asked for more.
      node.expires = math.max(node.expires, now + tonumber(ARGV[3 * n]))
      write(key, node)
    end
    answers[n + 1] = node.broken and 2 or 1
  else
    answers[n + 1] = 0
  end
end
return answers
