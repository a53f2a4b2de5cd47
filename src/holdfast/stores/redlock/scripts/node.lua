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

-- Return what is kept; a grant that has expired counts as gone. For data of another format, or that is no string at all,
-- return the error to reply: a script that reads many resources goes on with the others.
local function read(key)
  local kept = redis.pcall('GET', key)
  if type(kept) == 'table' then return kept end
  if not kept then return {counter = 0, ballot = 0, expires = 0, holder = '', facts = ''} end
  local counter, ballot, expires, line, holder, facts = string.match(kept, '^(%d+) (%d+) (%d+) (%d) (%S*) (.*)$')
  if not counter then return redis.error_reply('FORMAT 1 ' .. (string.match(kept, '^f(%d+) ') or 'unknown')) end
  local node = {counter = tonumber(counter), line = line == '1', ballot = 0, expires = 0, holder = '', facts = ''}
  if tonumber(expires) > now then
    local mark, name = string.match(holder, '^(!?)(.*)$')
    node.ballot, node.expires, node.holder, node.facts = tonumber(ballot), tonumber(expires), name, facts
    node.broken = mark == '!'
  end
  return node
end

-- A counter may be forgotten only when the clock exceeds it by a day: from then on older ballots are refused anyway. One
-- that was never there is not made by a place in line.
local function write(key, node)
  local last = node.counter > 0 and math.max(node.counter + DAY, node.expires) or now + 60 * 1000000
  local life = math.ceil((last - now) / 1000) + 1
  if life < 1 then return redis.call('DEL', key) end
  local numbers = string.format('%.0f %.0f %.0f %d ', node.counter, node.ballot, node.expires, node.line and 1 or 0)
  local holder = (node.broken and '!' or '') .. node.holder
  redis.call('SET', key, numbers .. holder .. ' ' .. node.facts, 'PX', string.format('%.0f', life))
end

-- Have the counter at a ballot at least, if that is one that could be granted here: a proposal of it that is overtaken
-- is refused from now on. Return whether that has changed anything.
local function pass(node, ballot)
  if ballot <= node.counter or ballot > now + WINDOW then return false end
  if node.counter == 0 and ballot < now - WINDOW then return false end
  node.counter = ballot
  return true
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
