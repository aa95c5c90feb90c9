-- One atomic step of the limiter. Nothing here is newer than Redis 6.2.
--
-- KEYS[1]                    the claim: "<reserved at>|<settle until>"
-- KEYS[2i], KEYS[2i + 1]     charge i: its state (hash) and its holds (sorted set by expiry)
-- ARGV[1..4]                 operation, now in ms ('' is this server's clock), claim id, ttl in ms
-- ARGV[5i .. 5i + 4]         charge i: kind, limit, amount, actual, period in ms (a window's: its end)
--
-- A rate is GCRA in its leaky-bucket form, in whole numbers: `level` is in amount * period, and
-- every millisecond takes `limit` from it. A hold is a member "<id>|<amount>".
-- Reply: {done, used, reset, wait, is unseeded, used, ...}; wait -1: no waiting makes room.

local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local operation, id, ttl = ARGV[1], ARGV[3], tonumber(ARGV[4])
local DAY = 86400000

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

local charges = {}
for i = 1, (#KEYS - 1) / 2 do
  local a = 5 * i
  local c = {
    state = KEYS[2 * i], holds = KEYS[2 * i + 1], kind = ARGV[a], limit = tonumber(ARGV[a + 1]),
    amount = tonumber(ARGV[a + 2]), actual = tonumber(ARGV[a + 3]), period = tonumber(ARGV[a + 4]),
  }
  if c.kind == 'rate' then
    local state = redis.call('HMGET', c.state, 'level', 'at')
    local elapsed = math.max(0, now - (tonumber(state[2]) or now))
    c.level = math.max(0, (tonumber(state[1]) or 0) - elapsed * c.limit)
  else
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
  charges[i] = c
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
    redis.call('PEXPIRE', c.state, math.ceil(c.level / math.max(1, c.limit)) + 1000)
    return
  end
  redis.call('HSET', c.state,
    'ends', c.ends, 'settled', c.settled, 'held', c.held, 'seeded', c.seeded)
  local keep = math.max(ttl, c.ends - now) + 1000
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
  local _, known_until = read_claim(redis.call('GET', KEYS[1]))
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
  redis.call('SET', KEYS[1], string.format('%.0f|%.0f', now, now + 2 * ttl), 'PX', 2 * ttl)
  return reply(true)
end

function steps.settle()
  local reserved_at, known_until = read_claim(redis.call('GETDEL', KEYS[1]))
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

return steps[operation]()
