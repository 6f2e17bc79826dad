# SPDX-License-Identifier: Apache-2.0
"""The requests that the check sends to a server: with each client over each protocol, and more."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Callable
from typing import Any

import numpy as np

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.constants import TRITON_LOCAL_IP
from pytriton.tools.check.add_sub_server import ADD_SUB, COUNTDOWN, Ports, bind_add_sub
from pytriton.triton import RemoteTriton

ClientCheck = Callable[[], str]  # returns the result as text, raises if it is not as expected

_TIMEOUT_S = 10.0
_LIMITS: dict[str, Any] = {"init_timeout_s": _TIMEOUT_S, "inference_timeout_s": _TIMEOUT_S}
_ONES = np.ones((2, 1), np.float32)
_START = np.array([3], np.int32)
_STREAM = [3, 2, 1]
_REMOTE = "RemoteAddSub"


def model_client_checks(ports: Ports) -> dict[str, ClientCheck]:
    """Returns the checks of the plain client over both protocols."""
    http_url, grpc_url = _urls(ports)
    return {
        "ModelClient over HTTP": lambda: _infer(http_url),
        "ModelClient over gRPC": lambda: _infer(grpc_url),
    }


def all_client_checks(ports: Ports) -> dict[str, ClientCheck]:
    """Returns the checks of all clients and their protocols, the HTTP stream, and the metrics."""
    http_url, grpc_url = _urls(ports)
    return model_client_checks(ports) | {
        "FuturesModelClient over HTTP": lambda: _infer_with_future(http_url),
        "FuturesModelClient over gRPC": lambda: _infer_with_future(grpc_url),
        "AsyncioModelClient over HTTP": lambda: asyncio.run(_infer_async(http_url)),
        "AsyncioModelClient over gRPC": lambda: asyncio.run(_infer_async(grpc_url)),
        "DecoupledModelClient over gRPC": lambda: _read_stream(grpc_url),
        "AsyncioDecoupledModelClient over gRPC": lambda: asyncio.run(_read_stream_async(grpc_url)),
        "generate_stream over HTTP": lambda: _read_events(ports),
        "metrics": lambda: _read_metrics(ports),
    }


def bind_remotely(ports: Ports, access_token: str) -> str:
    """Bind a model to the server as another process would, call it, and unbind it."""
    url, _ = _urls(ports)
    with RemoteTriton(url, access_token=access_token) as remote:
        bind_add_sub(remote, _REMOTE)
        text = _infer(url, _REMOTE)
    if responds_ok(ports, f"/v2/models/{_REMOTE}/ready"):
        raise ValueError(f"Expected that {_REMOTE} goes with its binder, but it is ready")
    return text


def responds_ok(ports: Ports, path: str) -> bool:
    """Returns whether the server answers a GET request with 200."""
    try:
        return status_of(ports, path) == http.client.OK
    except OSError:
        return False


def status_of(ports: Ports, path: str) -> int:
    """Returns the status of the server's response to a GET request."""
    return _http(ports.http, "GET", path)[0]


def _urls(ports: Ports) -> tuple[str, str]:
    return f"http://{TRITON_LOCAL_IP}:{ports.http}", f"grpc://{TRITON_LOCAL_IP}:{ports.grpc}"


def _infer(url: str, model_name: str = ADD_SUB) -> str:
    with ModelClient(url, model_name, **_LIMITS) as client:
        return _checked_sums(client.infer_batch(a=_ONES, b=_ONES))


def _infer_with_future(url: str) -> str:
    with FuturesModelClient(url, ADD_SUB, **_LIMITS) as client:
        return _checked_sums(client.infer_batch(a=_ONES, b=_ONES).result(_TIMEOUT_S))


async def _infer_async(url: str) -> str:
    async with AsyncioModelClient(url, ADD_SUB, **_LIMITS) as client:
        return _checked_sums(await client.infer_batch(a=_ONES, b=_ONES))


def _checked_sums(outputs: dict[str, Any]) -> str:
    text = ", ".join(f"{name}: {outputs[name].tolist()}" for name in ("add", "sub"))
    expected = "add: [[2.0], [2.0]], sub: [[0.0], [0.0]]"
    if text != expected:
        raise ValueError(f"Expected {expected}, got {text}")
    return text


def _read_stream(url: str) -> str:
    with DecoupledModelClient(url, COUNTDOWN, **_LIMITS) as client:
        return _checked_numbers(
            [response["number"].item() for response in client.infer_sample(start=_START)]
        )


async def _read_stream_async(url: str) -> str:
    async with AsyncioDecoupledModelClient(url, COUNTDOWN, **_LIMITS) as client:
        responses = client.infer_sample(start=_START)
        return _checked_numbers([response["number"].item() async for response in responses])


def _read_events(ports: Ports) -> str:
    path = f"/v2/models/{COUNTDOWN}/generate_stream"
    _, body = _http(ports.http, "POST", path, b'{"start": 3}')
    events = [line for line in body.decode().splitlines() if line.startswith("data:")]
    return _checked_numbers([int(event.partition('"number":')[2].rstrip("}")) for event in events])


def _checked_numbers(numbers: list[int]) -> str:
    if numbers != _STREAM:
        raise ValueError(f"Expected a stream of {_STREAM}, got {numbers}")
    return f"stream: {numbers}"


def _read_metrics(ports: Ports) -> str:
    _, body = _http(ports.metrics, "GET", "/metrics")
    count = body.count(b"\nnv_")
    if not count:
        raise ValueError(f"Expected samples of Triton's metrics, got {body[:200]!r}")
    return f"{count} samples"


def _http(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(TRITON_LOCAL_IP, port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
