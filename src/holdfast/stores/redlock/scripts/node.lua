-- Stands in claim, show, release, renew and evict.lua: what one node keeps of a resource, and its clock. The rule is that of
-- core/ballot.py. Times and ballots are microseconds; they fit a double, but `..` and tostring would round them.
--   KEY         string: "counter ballot expires line holder facts" of the grant (ballot 0: nobody holds); line is 1 if
--               somebody may wait; facts are "owner\nvalue", as the client writes them. This is format 1. A later one
--               must begin with "fN ", N being its number: also the scripts that knew of no formats fail over that.
--               The holder of a grant that was broken has a "!" before its name (no holder begins with one). So the
--               scripts that know nothing of this find it taken, by somebody whom they never heard of, until its end:
--               to them its renewals are lost, and what they give back for its holder leaves it alone. They write it
--               back as they found it. A mark in a field of its own they would ignore, and renew
--   KEY:line    sorted set: who waits, by arrival
--   KEY:places  hash: of those who wait, "expires channel facts"
local WINDOW = 3600 * 1000000
local DAY = 24 * WINDOW

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Return what is kept: counter, ballot, expires, line, holder, facts, broken; a grant that has expired counts as gone. For
-- data of another format, or that is no string at all, return nil and the error to reply: a script that reads many
-- resources goes on with the others. Single values, because a table for each call is a fifth of what a claim costs.
local function read(key)
  local kept = redis.pcall('GET', key)
  if not kept then return 0, 0, 0, false, '', '', false end
  if type(kept) == 'table' then return nil, kept end
  local counter, ballot, expires, line, holder, facts = string.match(kept, '^(%d+) (%d+) (%d+) (%d) (%S*) (.*)$')
  if not counter then return nil, redis.error_reply('FORMAT 1 ' .. (string.match(kept, '^f(%d+) ') or 'unknown')) end
  counter, expires = tonumber(counter), tonumber(expires)
  if expires <= now then return counter, 0, 0, line == '1', '', '', false end
  if string.byte(holder) ~= 33 then return counter, tonumber(ballot), expires, line == '1', holder, facts, false end
  return counter, tonumber(ballot), expires, line == '1', string.sub(holder, 2), facts, true -- 33 is "!"
end

-- A counter may be forgotten only when the clock exceeds it by a day: from then on older ballots are refused anyway. One
-- that was never there is not made by a place in line.
local function write(key, counter, ballot, expires, line, holder, facts, broken)
  local last = counter > 0 and counter + DAY or now + 60 * 1000000
  if counter > 0 and expires > last then last = expires end
  local life = math.ceil((last - now) / 1000) + 1
  if life < 1 then return redis.call('DEL', key) end
  local numbers = string.format('%.0f %.0f %.0f %d ', counter, ballot, expires, line and 1 or 0)
  local kept = numbers .. (broken and '!' or '') .. holder .. ' ' .. facts
  redis.call('SET', key, kept, 'PX', string.format('%.0f', life))
end

-- Return where the counter stands when a ballot has passed: at that ballot at least, if it is one that could be granted
-- here. A proposal of it that is overtaken is refused from then on.
local function passed(counter, ballot)
  if ballot <= counter or ballot > now + WINDOW then return counter end
  if counter == 0 and ballot < now - WINDOW then return counter end
  return ballot
end

local function wait_in_line(key, holder, life, channel, facts)
  redis.call('ZADD', key .. ':line', 'NX', string.format('%.0f', now), holder)
  redis.call('HSET', key .. ':places', holder, string.format('%.0f ', now + life) .. channel .. ' ' .. facts)
  -- A place ends at its own time; the keys go a minute after the last one.
  for _, name in ipairs({key .. ':line', key .. ':places'}) do
    redis.call('PEXPIRE', name, string.format('%.0f', life / 1000 + 60000))
  end
end

local function leave_line(key, holder)
  redis.call('HDEL', key .. ':places', holder)
  return redis.call('ZREM', key .. ':line', holder) == 1
end

-- Return until when somebody waits (0: no such place), on which channel it is told, and its facts.
local function place_of(key, holder)
  local place = redis.call('HGET', key .. ':places', holder) or ''
  local expires, channel, facts = string.match(place, '^(%d+) (%S+) (.*)$')
  return tonumber(expires) or 0, channel, facts
end
