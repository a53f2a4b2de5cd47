-- The fence of a register, as core/fence.py has it.
-- KEYS[1]: a hash with value, token, ends (of the value; empty: never), the two numbers newest and exclusive, and the
--          version of its format: 1, or none if one of the first clients wrote it. These did not read it either: a later
--          format needs other keys for registers.
-- ARGV: token, whether it is shared
local DAY = 86400000
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local token, shared = tonumber(ARGV[1]), ARGV[2] == '1'
local f = redis.call('HMGET', KEYS[1], 'newest', 'exclusive', 'ends', 'format')
if f[4] and f[4] ~= '1' then
  return redis.error_reply('FORMAT 1 ' .. f[4])
end
local newest, exclusive = tonumber(f[1]) or 0, tonumber(f[2]) or 0

-- Let the token in; return whether that was allowed.
local function enter()
  if token < (shared and exclusive or newest) then
    return false
  end
  redis.call('HSET', KEYS[1], 'newest', string.format('%.0f', math.max(newest, token)), 'exclusive',
    string.format('%.0f', shared and exclusive or math.max(exclusive, token)), 'format', 1)
  return true
end

-- The value goes at its end, the numbers a day later.
local function expire(ends)
  if ends then
    redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', ends + DAY))
  else
    redis.call('PERSIST', KEYS[1])
  end
end
