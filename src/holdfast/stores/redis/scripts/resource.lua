-- What every verb reads first: the hash of the resource, whose fields queue.lua describes, and the version of its format.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local key = KEYS[1]
local f = redis.call('HMGET', key, 'token', 'holder', 'ends', 'busy', 'life', 'format')
if f[6] and f[6] ~= '1' then
  return redis.error_reply('FORMAT 1 ' .. f[6])
end
