-- What every verb looks at first: the hash of the resource, whose fields redis_queue.lua describes.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local key = KEYS[1]
local f = redis.call('HMGET', key, 'token', 'holder', 'ends', 'busy', 'life')
