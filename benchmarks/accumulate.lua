-- SPDX-License-Identifier: Apache-2.0
-- wrk script: sequences of ten requests, one after the other. Each thread needs a connection of its
-- own (as many threads as connections), as a sequence has to be in order.
local length = 10
local body = '{"parameters":{"sequence_id":%d,"sequence_start":%s,"sequence_end":%s},"inputs":['
    .. '{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}'

local threads = 0

function setup(thread)
    threads = threads + 1
    thread:set("number", threads)
end

function init(args)
    wrk.method = "POST"
    wrk.headers["Content-Type"] = "application/json"
    first = tonumber(args[1]) + number * 1000000
    sequence = first
    sent = 0
end

function request()
    -- wrk tries the first request of one thread without sending it, so that is a whole sequence.
    local position = sent % length
    local is_start, is_end = position == 0, position == length - 1
    if sequence == first then
        is_end = true
    else
        sent = sent + 1
    end
    if is_start then
        sequence = sequence + 1
    end
    return wrk.format(nil, nil, nil, body:format(sequence, tostring(is_start), tostring(is_end)))
end

function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\n{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"failed":%d}\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
