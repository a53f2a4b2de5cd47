-- Ask for a resource, or ask again.
-- ARGV: holder, weight, capacity, fair, ttl, the claim, whether to stand in line, the waiting life
-- Returns the token of a new grant, {1, token, left} of an old one, {0, ahead, retry after, owner, token, left, capacity} or {-1, a token that is too large}.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local me, ttl = ARGV[1], tonumber(ARGV[5])

-- The fast way: an exclusive claim on what is free, with nobody else about. One key, three commands; how long the key
-- lives is written down in it (life), and prolonged once an hour at most. Numbers go to redis.call as they are, which
-- writes them in full; Lua's own way turns microseconds into 1.76e+15.
if ARGV[2] == '1073741824' then
  local f = redis.call('HMGET', KEYS[1], 'token', 'holder', 'ends', 'busy', 'life')
  if not f[4] and (not f[2] or tonumber(f[3]) <= now) then
    local token, ends, last = (tonumber(f[1]) or 0) + 1, now + ttl, now + ttl
    if token < now then
      token = now
    elseif token > ends then
      last = token
    end
    if token >= 9007199254740992 then
      return {-1, token}
    end
    redis.call('HSET', KEYS[1], 'token', token, 'holder', me, 'ends', ends, 'claim', ARGV[6])
    if not f[5] or last + 86400000000 > tonumber(f[5]) then
      local life = last + 90000000000
      redis.call('HSET', KEYS[1], 'life', life)
      redis.call('PEXPIREAT', KEYS[1], math.floor(life / 1000))
    end
    return token
  end
end

-- include redis_queue.lua

local weight, capacity, fair = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local FEW = 8
local mine, seq

-- Who stands in the way, and for how long at least? Of the waiters ahead, the one whose life ends first is looked for
-- among the first few by that time. If none of those is ahead, the last of them gives a time too early rather than late.
local function waiting(rank)
  local retry, blocker, record, ends
  if q.holder then
    retry, ends, record = q.ends, q.ends, q.claim
    blocker = {token = q.token, capacity = MAX}
  else
    local first = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')
    if first[1] then
      ends = tonumber(first[2])
      retry, record = ends, redis.call('HGET', claims, first[1])
    elseif rank > 0 then
      local next_one = redis.call('ZRANGE', line, 0, 0)[1]
      ends, record = tonumber(redis.call('ZSCORE', lives, next_one)), redis.call('HGET', claims, next_one)
    else
      return {0, 0, -1, '', 0, 0, MAX} -- its own weight exceeds its own capacity
    end
    blocker = parse(record)
  end
  local soon = rank > 0 and redis.call('ZRANGE', lives, 0, FEW - 1, 'WITHSCORES') or {}
  for i = 1, #soon, 2 do
    if not seq or i == 2 * FEW - 1 or tonumber(redis.call('ZSCORE', line, soon[i])) < seq then
      retry = math.min(retry or LIMIT, tonumber(soon[i + 1]))
      break
    end
  end
  local ahead = rank + redis.call('ZCARD', held) + (q.holder and 1 or 0)
  local owner = string.match(record, '\n([^\n]*)')
  return {0, ahead, retry - now, owner, blocker.token, ends - now, blocker.capacity}
end

local function fits(rank)
  local total = granted() + weight
  if fair and total <= capacity then
    each_waiting(rank - 1, function(_, waiter)
      total = total + waiter.weight
      return total > capacity
    end)
  end
  return total <= capacity
end

local function grant()
  local token = math.max(q.token + 1, now)
  if token >= LIMIT then
    return {-1, token}
  end
  if mine then
    drop(me)
  end
  q.token, changed = token, true
  redis.call('HSET', key, 'token', token)
  if weight == MAX then
    q.holder, q.ends = me, now + ttl
    redis.call('HSET', key, 'holder', me, 'ends', q.ends, 'claim', ARGV[6])
  else
    seq = seq or redis.call('HINCRBY', key, 'seq', 1)
    redis.call('HSET', claims, me, int(token) .. ' ' .. int(seq) .. ' 0 ' .. ARGV[6])
    redis.call('ZADD', held, now + ttl, me)
    q.weight = q.weight + weight
  end
  return token
end

local function stand_in_line()
  if not mine then
    seq = redis.call('HINCRBY', key, 'seq', 1)
    redis.call('HSET', claims, me, '0 ' .. int(seq) .. ' 0 ' .. ARGV[6])
    redis.call('ZADD', line, seq, me)
    q.slack, q.unfair = math.max(q.slack, capacity - weight), q.unfair or not fair
  end
  redis.call('ZADD', lives, now + ARGV[8], me)
end

local answer
local gone = sweep(now)
mine = q.others and parse(redis.call('HGET', claims, me))
seq = mine and mine.seq
if q.holder == me then
  answer = {1, q.token, q.ends - now}
elseif mine and mine.token > 0 then
  answer = {1, mine.token, tonumber(redis.call('ZSCORE', held, me)) - now}
else
  local rank = mine and redis.call('ZRANK', line, me) or redis.call('ZCARD', line)
  if fits(rank) then
    answer = grant()
  else
    answer = waiting(rank)
    if ARGV[7] == '1' then
      stand_in_line()
    elseif mine then
      drop(me)
      gone = true
    end
  end
end
if gone then
  wake()
end
save(now)
return answer
