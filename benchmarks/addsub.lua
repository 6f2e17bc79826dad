-- SPDX-License-Identifier: Apache-2.0
-- wrk script: one AddSub inference per request; prints one line of JSON at the end. Requests are
-- equal, unless a number follows `--` on the command line: then it is b, and a counts requests.
local body = '{"inputs":['
    .. '{"name":"a","shape":[1,1],"datatype":"FP32","data":[%d]},'
    .. '{"name":"b","shape":[1,1],"datatype":"FP32","data":[%d]}]}'

wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = body:format(1, 2)

function init(args)
    local b, sent = tonumber(args[1]), 0
    if b then
        function request()
            sent = sent + 1
            return wrk.format(nil, nil, nil, body:format(sent, b))
        end
    end
end

function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\n{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"failed":%d}\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
