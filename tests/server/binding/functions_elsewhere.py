# SPDX-License-Identifier: Apache-2.0
"""Functions that worker processes of the tests import by name."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import time

import numpy as np

from pytriton.decorators import triton_context
from pytriton.exceptions import PyTritonUnrecoverableError

calls = 0


def pid_of(requests):
    """Answers with the process, so that a test can kill it."""
    return [{"y": np.full((1, 1), os.getpid(), np.float32)} for _ in requests]


def counting():
    """A factory: what it returns counts its requests, in one process each."""
    count = 0

    def count_up(requests):
        nonlocal count
        count += len(requests)
        return [{"y": np.full((1, 1), count, np.float32)} for _ in requests]

    return count_up


class Tripler:
    def __call__(self, requests):
        return [{"y": 3 * request["x"]} for request in requests]


async def sleeping(requests):
    await asyncio.sleep(0.01)
    return [{"y": request["x"]} for request in requests]


def three_times(requests):
    for number in range(3):
        yield [{"y": request["x"] + number} for request in requests]


def add(x: float, z: float = 5.0) -> float:
    return x + z


def subtract(x, z):
    return x - z


def accumulate(requests):
    answers = []
    for request in requests:
        total = np.where(request["START"], 0, request["past"]) + request["x"]
        answers.append({"y": total, "next": total})
    return answers


@triton_context
def batch_size(requests, **context):
    config = context["triton_context"].model_configs
    (only,) = config.values()
    return [{"y": np.full((1, 1), only.max_batch_size, np.float32)} for _ in requests]


def wrong_type(requests):
    return [{"y": request["x"].astype(np.int64)} for request in requests]


def unrecoverable(requests):
    if requests[0]["x"][0, 0] < 0:
        raise PyTritonUnrecoverableError("out of memory")
    return pid_of(requests)


def failing(requests):
    raise ValueError("no")


def broken_factory():
    raise RuntimeError("no weights here")


def slow_factory():
    time.sleep(600)


def summed_by_ranks():
    """A factory for a group: each rank adds its number and one, and rank 0 asks the others."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank:
        return functools.partial(_answer_rank_0, _connect(address), rank)
    with socket.create_server(address) as listener:
        others = [listener.accept()[0] for _ in range(size - 1)]

    def infer(requests):
        for other in others:
            other.sendall(b"?" if requests[0]["x"][0, 0] >= 0 else b"!")
        total = 1 + sum(other.recv(1)[0] for other in others)
        return [{"y": request["x"] + total} for request in requests]

    return infer


def _answer_rank_0(sock, rank):
    while question := sock.recv(1):
        if question == b"!":
            raise ArithmeticError("a rank that cannot go on")
        sock.sendall(bytes([rank + 1]))


def _connect(address):
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(address)
        time.sleep(0.01)


def idle_followers():
    """A factory whose other ranks have nothing to do."""
    return pid_of if os.environ["RANK"] == "0" else None
