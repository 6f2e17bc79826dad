# SPDX-License-Identifier: Apache-2.0
"""The few HTTP calls that the promises are checked with, on nothing but the standard library."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.e2e.waiting import DEADLINE_S

DATATYPES = {"float32": "FP32", "int32": "INT32", "object": "BYTES"}


def get(port: int, path: str) -> tuple[int, Any]:
    """Status and body, decoded where it is JSON."""
    return _fetch(urllib.request.Request(f"http://127.0.0.1:{port}{path}"))


def infer(port: int, model: str, /, **inputs: np.ndarray) -> tuple[int, Any]:
    """Status and outputs by name, or the error's text."""
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": DATATYPES[array.dtype.name],
            "data": array.tolist(),
        }
        for name, array in inputs.items()
    ]
    body = json.dumps({"inputs": tensors}).encode()
    url = f"http://127.0.0.1:{port}/v2/models/{model}/infer"
    status, answer = _fetch(urllib.request.Request(url, body))
    if status != 200:
        return status, answer["error"]
    return status, {output["name"]: output["data"] for output in answer["outputs"]}


def answers(port: int) -> bool:
    """Whether anything listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true before the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _fetch(request: urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, _decoded(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _decoded(error.read())


def _decoded(body: bytes) -> Any:
    text = body.decode()
    return json.loads(text) if text.startswith(("{", "[")) else text
