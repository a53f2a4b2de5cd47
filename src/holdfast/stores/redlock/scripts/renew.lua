-- Renew exactly these grants: ballot.prolonged(). What has ended is never re-created.
-- KEYS: of each resource. ARGV: holder, ballot, ttl of each. Returns the clock, then for each 1, 0,
-- 2 if it was broken, or an error.
-- include node.lua
local answers = {now}
for n, key in ipairs(KEYS) do
  local counter, ballot, expires, line, by, facts, broken = read(key)
  if not counter then
    answers[n + 1] = ballot -- the error, of this one alone
  elseif ballot > 0 and by == ARGV[3 * n - 2] and ballot == tonumber(ARGV[3 * n - 1]) then
    if not broken then
      -- Never nearer: this may be a late copy, and the holder has since asked for more.
      write(key, counter, ballot, math.max(expires, now + tonumber(ARGV[3 * n])), line, by, facts, false)
    end
    answers[n + 1] = broken and 2 or 1
  else
    answers[n + 1] = 0
  end
end
return answers
