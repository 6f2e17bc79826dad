# SPDX-License-Identifier: Apache-2.0
"""Sends many requests at a time, a few of which are slow."""

import argparse
import asyncio
import json

from pytriton.client import ModelClient

CONNECTIONS = 32


def message(request_id, seconds):
    tensor = {"name": "seconds", "shape": [1, 1], "datatype": "FP32", "data": [seconds]}
    body = json.dumps({"id": request_id, "inputs": [tensor]})
    head = f"POST /v2/models/Work/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


async def ask(host, port, numbers, every, seconds):
    """Sends a request for each number that it gets, one after another."""
    reader, writer = await asyncio.open_connection(host, port)
    for number in numbers:
        is_slow = number % every == 0
        request_id = f"slow-{number // every}" if is_slow else f"quick-{number}"
        writer.write(message(request_id, seconds if is_slow else 0))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    writer.close()


async def send(host, port, count, slow, seconds):
    """Sends requests, `slow` of which take so many seconds."""
    numbers = iter(range(count))  # all connections take from it
    clients = [ask(host, port, numbers, count // slow, seconds) for _ in range(CONNECTIONS)]
    await asyncio.gather(*clients)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="host:port of the server")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="that a slow one takes")
    arguments = parser.parse_args()
    with ModelClient(arguments.address, "Work", init_timeout_s=60) as client:
        client.wait_for_model(60)
    host, port = arguments.address.split(":")
    asyncio.run(send(host, int(port), arguments.count, arguments.slow, arguments.seconds))
    print(f"sent {arguments.count} requests, {arguments.slow} of them slow")
