-- SPDX-License-Identifier: Apache-2.0
-- wrk script: sends recorded requests, whole with their heads, of the files that its arguments name, in turns. Every "@@@@@@@@"
-- in them becomes a number that counts requests. Prints one line of JSON at the end.
local threads = 0

function setup(thread)
    thread:set("number", threads)
    threads = threads + 1
end

local function pieces(text)
    local found, from = {}, 1
    while true do
        local first, last = text:find("@@@@@@@@", from, true)
        found[#found + 1] = text:sub(from, first and first - 1)
        if not first then
            return found
        end
        from = last + 1
    end
end

function init(args)
    local requests, sent = {}, number * 10000000
    for index = 1, #args do
        local file = assert(io.open(args[index], "rb"))
        requests[index] = pieces(file:read("*a"))
        file:close()
    end
    if #requests == 1 and #requests[1] == 1 then
        local only = requests[1][1]
        function request()
            return only
        end
    else
        function request()
            sent = sent + 1
            local parts = requests[sent % #requests + 1]
            return #parts == 1 and parts[1] or table.concat(parts, string.format("%08d", sent % 100000000))
        end
    end
end

function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\n{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"failed":%d,"bytes":%d,"calls":%d}\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.connect + errors.read + errors.write + errors.status + errors.timeout, summary.bytes,
        summary.requests))
end
