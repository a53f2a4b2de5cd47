-- Stands in enter.lua and write.lua: what one node keeps of a register.
--   KEYS[1]  hash: newest, exclusive (the fence, as core/fence.py has it); epoch, version, writer (which value is the
--            latest); value, token, ends (of the value: microseconds, empty: never, missing: there is none); format: 1,
--            or missing where one of the first clients wrote it. These did not read it either: a later format needs
--            other keys
local DAY = 24 * 3600 * 1000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local f = redis.call('HMGET', KEYS[1], 'newest', 'exclusive', 'epoch', 'version', 'writer', 'ends', 'format')
if f[7] and f[7] ~= '1' then return redis.error_reply('FORMAT 1 ' .. f[7]) end
local newest, exclusive = tonumber(f[1]) or 0, tonumber(f[2]) or 0
local epoch, version, writer, ends = tonumber(f[3]) or 0, tonumber(f[4]) or 0, f[5] or '', f[6]

local function int(number)
  return string.format('%.0f', number)
end

-- The value goes at its end; the numbers a day after it, and not before the clock is a day past the newest token.
local function expire(last)
  if last == '' then
    redis.call('PERSIST', KEYS[1])
  else
    redis.call('PEXPIREAT', KEYS[1], int((math.max(tonumber(last) or now, newest, now) + DAY) / 1000))
  end
end
