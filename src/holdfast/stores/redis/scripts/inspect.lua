-- Show one resource, and change nothing but who watches it.
-- ARGV: nothing, or "channel name" and for how long to be told when the holders change
-- Returns {token, {holder, token, left, kept, seq, claim} …}: whoever holds or waits. kept is 2 for what was broken.
-- include resource.lua
-- include broken.lua
if ARGV[1] then
  local ends = now + ARGV[2]
  redis.call('ZADD', key .. ':watch', ends, ARGV[1])
  redis.call('PEXPIRE', key .. ':watch', 86400000)
  if (f[4] or '') == '' then -- the fast ways must not be taken: nobody waits or shares, but somebody is to be told
    f[4] = '0 1 0 0 0 0 0 9007199254740992'
  end
  redis.call('HSET', key, 'busy', (string.gsub(f[4], '^(%d) %d', '%1 1', 1)))
  if redis.call('PTTL', key) < 0 then -- nobody has used it yet
    redis.call('HSET', key, 'life', ends, 'format', 1)
    redis.call('PEXPIREAT', key, math.floor(ends / 1000))
  end
end
local state = {tonumber(f[1]) or 0}
if f[2] and tonumber(f[3]) > now then
  local kept = string.match(f[4] or '', '^1') and (is_broken(f[2]) and 2 or 1) or 0
  state[2] = {f[2], state[1], tonumber(f[3]) - now, kept, 0, redis.call('HGET', key, 'claim')}
end
if (f[4] or '') ~= '' then
  local records = redis.call('HGETALL', key .. ':claims')
  for i = 1, #records, 2 do
    local token, seq, kept, claim = string.match(records[i + 1], '^(%d+) (%d+) (%d) (.*)$')
    local ends = redis.call('ZSCORE', key .. (token == '0' and ':lives' or ':held'), records[i])
    if ends and tonumber(ends) > now then -- it has none while the slot is on the move
      local why = kept == '1' and is_broken(records[i]) and 2 or tonumber(kept)
      state[#state + 1] = {records[i], tonumber(token), tonumber(ends) - now, why, tonumber(seq), claim}
    end
  end
end
return state
