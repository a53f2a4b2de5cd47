-- Ask for a resource, or ask again.
-- ARGV: holder, weight, capacity, fair, ttl, the claim, whether to stand in line, the waiting life
-- Returns the token of a new grant, {1, token, left} of an old one, {0, ahead, retry after, owner, token, left, capacity, newest} or {-1, a token that is too large}.
-- include resource.lua
local me, ttl = ARGV[1], tonumber(ARGV[5])

-- The fast way: an exclusive claim on what is free, with nobody else about. One key, three commands; how long the key
-- lives is written down in it (life), and prolonged once an hour at most. Numbers go to redis.call as they are, which
-- writes them in full; Lua's own way turns microseconds into 1.76e+15.
if ARGV[2] == '1073741824' and (f[4] or '') == '' and (not f[2] or tonumber(f[3]) <= now) then
  local token, ends, last = (tonumber(f[1]) or 0) + 1, now + ttl, now + ttl
  if token < now then
    token = now
  elseif token > ends then
    last = token
  end
  if token >= 9007199254740992 then
    return {-1, token}
  end
  redis.call('HSET', key, 'token', token, 'holder', me, 'ends', ends, 'claim', ARGV[6])
  if not f[5] or last + 86400000000 > tonumber(f[5]) then
    local life = last + 90000000000
    redis.call('HSET', key, 'life', life, 'format', 1)
    redis.call('PEXPIREAT', key, math.floor(life / 1000))
  end
  return token
end

-- include queue.lua

local weight, capacity, fair = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local FEW = 8
local gone = sweep()
local mine = q.waiting + q.weight > 0 and parse(redis.call('HGET', claims, me))
local answer
if q.holder == me then
  answer = {1, q.token, q.ends - now}
elseif mine and mine.token > 0 then
  answer = {1, mine.token, tonumber(redis.call('ZSCORE', held, me)) - now}
else
  -- Does it fit beside those that hold, and behind those that wait?
  local rank, seq = q.waiting, q.seq + 1
  if mine then
    rank, seq = redis.call('ZRANK', line, me), mine.seq
  end
  local total = q.weight + (q.holder and MAX or 0) + weight
  local head, first -- of the line: its name, and what it claims
  if fair and rank > 0 and total <= capacity then
    each_waiting(rank - 1, function(who, waiter)
      if not head then
        head, first = who, waiter
      end
      total = total + waiter.weight
      return total > capacity
    end)
  end

  if total <= capacity then
    answer = grant(me, mine, weight, ttl, seq, ARGV[6])
  else
    -- Who is in the way, and for how long at least? Of the waiters ahead, find the one whose life ends first, among the
    -- few whose lives end first of all. If none of those is ahead, the last of them gives a time that is too early, not
    -- too late.
    local soon = rank > 0 and redis.call('ZRANGE', lives, 0, FEW - 1, 'WITHSCORES') or {}
    local retry, owner, by, left, room = LIMIT, '', 0, now, MAX
    if q.holder then
      retry, by, left = q.ends, q.token, q.ends
      owner = string.match(redis.call('HGET', key, 'claim'), '\n([^\n]*)')
    elseif q.weight > 0 then
      local next_end = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')
      local sharer = parse(redis.call('HGET', claims, next_end[1]))
      retry, left = tonumber(next_end[2]), tonumber(next_end[2])
      owner, by, room = sharer.owner, sharer.token, sharer.capacity
    elseif rank > 0 then
      if not head then
        head = redis.call('ZRANGE', line, 0, 0)[1]
        first = parse(redis.call('HGET', claims, head))
      end
      owner, room = first.owner, first.capacity
      left = tonumber(head == soon[1] and soon[2] or redis.call('ZSCORE', lives, head))
    else
      retry = now - 1 -- its own weight exceeds its own capacity
    end
    for i = 1, #soon, 2 do
      if not mine or i == 2 * FEW - 1 or tonumber(redis.call('ZSCORE', line, soon[i])) < seq then
        retry = math.min(retry, tonumber(soon[i + 1]))
        break
      end
    end
    local holders = (q.holder and 1 or 0) + (q.weight > 0 and redis.call('ZCARD', held) or 0)
    -- The clock covers for a counter that was lost with the data.
    answer = {0, rank + holders, retry - now, owner, by, left - now, room, math.max(q.token, now - 1)}

    if ARGV[7] == '1' then
      if not mine then
        redis.call('HSET', claims, me, string.format('0 %d 0 ', seq) .. ARGV[6])
        redis.call('ZADD', line, seq, me)
        fresh, q.waiting, q.seq = q.waiting == 0, q.waiting + 1, seq
        q.slack, q.unfair = math.max(q.slack, capacity - weight), q.unfair or not fair
      end
      ends_at(lives, now + ARGV[8], me)
    elseif mine then
      drop(me, mine)
      gone = true
    end
  end
end
if gone then
  wake()
end
save()
return answer
