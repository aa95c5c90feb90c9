-- Steps of the limiter, one after the other and all in one. Nothing here is newer than Redis 6.2.
--
-- ARGV[1]            now in ms ('' is this server's clock); then for each operation:
-- KEYS               the claim: "<reserved at>|<settle until>"; and for each charge of it
--                    its state (hash) and its holds (sorted set by expiry)
-- ARGV               operation, claim id, ttl in ms, number of charges; and for each charge
--                    kind, limit, amount, actual, period in ms (a window's: its end)
--
-- A rate is GCRA in its leaky-bucket form, in whole numbers: `level` is in amount * period, and
-- every millisecond takes `limit` from it. A hold is a member "<id>|<amount>".
-- Reply: for each operation {done, used, reset, wait, is unseeded, held, used, ...}; wait -1: no
-- waiting makes room.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local id, ttl, claim, charges -- of the operation at work
local DAY = 86400000
local MARGIN = 10000 -- ms that keys outlive their meaning: tests pass a `now` that lags

-- The day (since 1970) on which the next calendar month begins.
local function next_month(day)
  local year, left = 1970, day
  local lengths = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }
  while true do
    local is_leap = (year % 4 == 0 and year % 100 ~= 0) or year % 400 == 0
    lengths[2] = is_leap and 29 or 28
    for _, length in ipairs(lengths) do
      if left < length then return day - left + length end
      left = left - length
    end
    year = year + 1
  end
end

-- When the calendar period that contains `at` ends; a lease has none.
local function period_end(c, at)
  local kind = c.kind
  if kind == 'window' then return c.period end
  local day = math.floor(at / DAY)
  if kind == 'day' then return (day + 1) * DAY end
  if kind == 'month' then return next_month(day) * DAY end
  return 0
end

local function amount_of(member)
  return tonumber(string.match(member, '|(%d+)$'))
end

-- What is known of a charge at this moment.
local function read_state(c)
  if c.kind == 'rate' then
    local state = redis.call('HMGET', c.state, 'level', 'at')
    local elapsed = math.max(0, now - (tonumber(state[2]) or now))
    c.level = math.max(0, (tonumber(state[1]) or 0) - elapsed * c.limit)
    return
  end
  local state = redis.call('HMGET', c.state, 'ends', 'settled', 'held', 'seeded')
  c.ends = tonumber(state[1])
  if c.ends and (c.ends > now or c.kind == 'lease') then
    c.settled, c.held, c.seeded = tonumber(state[2]), tonumber(state[3]), tonumber(state[4])
  else
    c.ends, c.settled, c.held, c.seeded = period_end(c, now), 0, 0, 0
    redis.call('DEL', c.holds)
  end
  local gone = redis.call('ZRANGEBYSCORE', c.holds, '-inf', now)
  if #gone > 0 then
    for _, member in ipairs(gone) do c.held = c.held - amount_of(member) end
    redis.call('ZREMRANGEBYSCORE', c.holds, '-inf', now)
    redis.call('HSET', c.state, 'held', c.held)
  end
  if c.held > 0 and redis.call('EXISTS', c.holds) == 0 then c.held = 0 end -- evicted
end

-- The milliseconds until enough holds of a lease have expired by themselves.
local function lease_wait(c, missing)
  local rank = 0
  while true do
    local page = redis.call('ZRANGE', c.holds, rank, rank + 99, 'WITHSCORES')
    for i = 1, #page, 2 do
      missing = missing - amount_of(page[i])
      if missing <= 0 then return tonumber(page[i + 1]) - now end
    end
    rank = rank + 100
  end
end

local function wait_of(c)
  if c.amount > c.limit then return -1 end
  if c.kind == 'rate' then
    local missing = c.level + (c.amount - c.limit) * c.period
    if missing <= 0 then return 0 end
    return c.limit > 0 and math.ceil(missing / c.limit) or -1
  end
  local missing = c.settled + c.held + c.amount - c.limit
  if missing <= 0 then return 0 end
  return c.kind == 'lease' and lease_wait(c, missing) or c.ends - now
end

local function write(c)
  if c.kind == 'rate' then
    redis.call('HSET', c.state, 'level', c.level, 'at', now)
    redis.call('PEXPIRE', c.state, math.ceil(c.level / math.max(1, c.limit)) + MARGIN)
    return
  end
  redis.call('HSET', c.state,
    'ends', c.ends, 'settled', c.settled, 'held', c.held, 'seeded', c.seeded)
  local keep = math.max(ttl, c.ends - now) + MARGIN
  for _, key in ipairs({ c.state, c.holds }) do
    if redis.call('PTTL', key) < keep then redis.call('PEXPIRE', key, keep) end
  end
end

local function reply(done)
  local answer = { done and 1 or 0 }
  for _, c in ipairs(charges) do
    if c.kind == 'rate' then
      table.insert(answer, math.ceil(c.level / c.period))
      table.insert(answer, c.limit > 0 and math.ceil(c.level / c.limit) or 0)
    else
      table.insert(answer, c.settled + c.held)
      table.insert(answer, math.max(0, c.ends - now))
    end
    table.insert(answer, c.wait or 0)
    table.insert(answer, c.seeded == 0 and c.kind ~= 'lease' and 1 or 0)
    table.insert(answer, c.held or 0)
  end
  return answer
end

local function read_claim(value) -- false where there is none
  local reserved_at, known_until = string.match(value or '', '^(%d+)|(%d+)$')
  return tonumber(reserved_at or 0), tonumber(known_until or -1)
end

local steps = {}

function steps.read()
  for _, c in ipairs(charges) do
    c.wait = wait_of(c)
  end
  return reply(true)
end

function steps.reserve()
  local _, known_until = read_claim(redis.call('GET', claim))
  if known_until > now then return reply(true) end
  local admitted = true
  for _, c in ipairs(charges) do
    c.wait = wait_of(c)
    admitted = admitted and c.wait == 0
  end
  if not admitted then return reply(false) end
  for _, c in ipairs(charges) do
    if c.kind == 'rate' then
      c.level = c.level + c.amount * c.period
    else
      redis.call('ZADD', c.holds, now + ttl, id .. '|' .. string.format('%.0f', c.amount))
      c.held = c.held + c.amount
    end
    write(c)
  end
  redis.call('SET', claim, string.format('%.0f|%.0f', now, now + 2 * ttl), 'PX', 2 * ttl)
  return reply(true)
end

function steps.settle()
  local reserved_at, known_until = read_claim(redis.call('GETDEL', claim))
  if known_until < now then return { 0 } end
  for _, c in ipairs(charges) do
    if c.kind == 'rate' then
      c.level = math.max(0, c.level + (c.actual - c.amount) * c.period)
    else
      local member = id .. '|' .. string.format('%.0f', c.amount)
      if redis.call('ZREM', c.holds, member) == 1 then c.held = c.held - c.amount end
      if c.kind ~= 'lease' and period_end(c, reserved_at) == c.ends then
        c.settled = c.settled + c.actual
      end
    end
    write(c)
  end
  return { 1 }
end

-- Ends the holds of these leases before their request does.
function steps.release()
  for _, c in ipairs(charges) do
    if redis.call('ZREM', c.holds, id .. '|' .. string.format('%.0f', c.amount)) == 1 then
      c.held = c.held - c.amount
      write(c)
    end
  end
  return { 1 }
end

function steps.seed()
  for _, c in ipairs(charges) do
    if c.seeded == 0 then
      c.settled, c.seeded = c.settled + c.amount, 1
      write(c)
    end
  end
  return { 1 }
end

local answers, key, argument = {}, 1, 2
while ARGV[argument] do
  local operation = ARGV[argument]
  claim, id, ttl, charges = KEYS[key], ARGV[argument + 1], tonumber(ARGV[argument + 2]), {}
  local count = tonumber(ARGV[argument + 3])
  key, argument = key + 1, argument + 4
  for i = 1, count do
    charges[i] = {
      state = KEYS[key], holds = KEYS[key + 1], kind = ARGV[argument],
      limit = tonumber(ARGV[argument + 1]), amount = tonumber(ARGV[argument + 2]),
      actual = tonumber(ARGV[argument + 3]), period = tonumber(ARGV[argument + 4]),
    }
    read_state(charges[i])
    key, argument = key + 2, argument + 5
  end
  table.insert(answers, steps[operation]())
end
return answers
