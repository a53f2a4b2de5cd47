-- Keep a value if it is later than the one that is here. An older epoch than the fence's is refused: an exclusive holder
-- has entered since, and has read a majority without this value.
-- ARGV: epoch, version, writer, whether there is a value, value, token, how long to keep it (-1: for ever), and of a
-- writer the token that has entered, and whether it is shared
-- Returns 1, or 0, newest, exclusive if it is refused.
-- include register.lua
local of_epoch, of_version, by = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local entered = tonumber(ARGV[8])
if of_epoch < exclusive or (entered and entered < (ARGV[9] == '1' and exclusive or newest)) then
  return {0, newest, exclusive}
end
local later = of_epoch > epoch or (of_epoch == epoch and (of_version > version or (of_version == version and by > writer)))
if later then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'version', ARGV[2], 'writer', by, 'format', 1)
  if ARGV[4] == '1' then
    local last = ARGV[7] == '-1' and '' or int(now + tonumber(ARGV[7]))
    redis.call('HSET', KEYS[1], 'value', ARGV[5], 'token', ARGV[6], 'ends', last)
    expire(last)
  else
    redis.call('HDEL', KEYS[1], 'value', 'token', 'ends')
    expire(false)
  end
end
return {1}
