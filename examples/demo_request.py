# SPDX-License-Identifier: Apache-2.0
"""demo_request.py HTTP_PORT SERVER_PID: waits for the demo server, then asks AddSub."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

START_TIMEOUT_S = 60.0


def is_ready(url):
    try:
        with urllib.request.urlopen(f"{url}/v2/models/AddSub/ready", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def wait_ready(url, server_pid):
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_ready(url):
        try:
            os.kill(server_pid, 0)
        except ProcessLookupError:
            sys.exit("the server ended before it was ready")
        if time.monotonic() > deadline:
            sys.exit(f"the server was not ready after {START_TIMEOUT_S:.0f} s")
        time.sleep(0.05)


def scalar(name, value):
    return {"name": name, "shape": [1, 1], "datatype": "FP32", "data": [value]}


def readable(tensors):
    return "\n".join(f"  {json.dumps(tensor)}" for tensor in tensors)


if __name__ == "__main__":
    url = f"http://127.0.0.1:{sys.argv[1]}"
    wait_ready(url, int(sys.argv[2]))
    path = "/v2/models/AddSub/infer"
    inputs = [scalar("a", 40), scalar("b", 2)]
    print(f"\nPOST {path}, inputs:\n{readable(inputs)}")
    request = urllib.request.Request(url + path, json.dumps({"inputs": inputs}).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        print(
            f"{answer.status} {answer.reason}, outputs:\n{readable(json.load(answer)['outputs'])}\n"
        )
