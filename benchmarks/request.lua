-- SPDX-License-Identifier: Apache-2.0
-- wrk script: sends the content of a file. Arguments: the file, and how many bytes of it are JSON if
-- tensors follow in binary. Prints one line of JSON at the end.
function init(args)
    local file = assert(io.open(args[1], "rb"))
    wrk.method = "POST"
    wrk.body = file:read("*a")
    file:close()
    if args[2] then
        wrk.headers["Content-Type"] = "application/octet-stream"
        wrk.headers["Inference-Header-Content-Length"] = args[2]
    else
        wrk.headers["Content-Type"] = "application/json"
    end
end

function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\n{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"failed":%d}\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
