# SPDX-License-Identifier: Apache-2.0
"""Whether serving works here: a server, one request by each client over each protocol, its end."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from pytriton.check.add_sub_server import ADD_SUB, COUNTDOWN, Ports, bind_models
from pytriton.check.report import Finding, Section, State
from pytriton.check.utils import ScriptThread
from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.constants import TRITON_LOCAL_IP
from pytriton.triton import Triton

logger = logging.getLogger(__name__)

_TIMEOUT_S = 60.0
_ONES = np.ones((2, 1), np.float32)
_START = np.array([3], np.int32)
_STREAM = [3, 2, 1]


def example_add_sub(folder: pathlib.Path) -> Section:
    """Serve from this process and ask; the server's log is left in the folder."""
    ports = Ports.free()
    serving = _server_here(ports, folder / "server_log.txt")
    return _section("Checking a server in this process", ports, serving)


def example_add_sub_script(folder: pathlib.Path) -> Section:
    """Serve from a script in a process of its own and ask; what it prints is logged."""
    ports = Ports.free()
    return _section("Checking a server in a script", ports, _server_in_script(ports, folder))


def _section(title: str, ports: Ports, serving: AbstractContextManager[None]) -> Section:
    with contextlib.ExitStack() as stack:
        start = _attempt("server starts", lambda: _start(stack, serving, ports))
        findings = [start]
        if start.state is State.OK:
            findings += [_attempt(name, ask) for name, ask in _questions(ports).items()]
            findings.append(_attempt("server stops", lambda: _stop(stack, ports)))
    return Section(title, tuple(findings))


def _attempt(name: str, action: Callable[[], str]) -> Finding:
    started_s = time.perf_counter()
    try:
        text = action()
    except Exception as error:
        logger.exception("Error occurred in command: %s", name)
        text = f"Error occurred in command: {type(error).__name__}: {error}"
        return Finding(name, text, State.FAILED)
    took_ms = (time.perf_counter() - started_s) * 1000
    return Finding(name, f"{text} ({took_ms:.1f} ms)", State.OK)


@contextlib.contextmanager
def _server_here(ports: Ports, log_file: pathlib.Path) -> Iterator[None]:
    with Triton(config=ports.config(log_file)) as triton:
        bind_models(triton)
        yield


@contextlib.contextmanager
def _server_in_script(ports: Ports, folder: pathlib.Path) -> Iterator[None]:
    numbers = (str(port) for port in (ports.http, ports.grpc, ports.metrics))
    command = [sys.executable, "-m", "pytriton.check.add_sub_server", *numbers]
    with ScriptThread(command, workdir=folder, name="add_sub_server") as script:
        try:
            _wait_ready(ports, script)
            yield
        finally:
            process = script.process
            if process is not None:
                process.send_signal(signal.SIGINT)
    if script.returncode not in (0, -signal.SIGINT):
        raise RuntimeError(f"Expected exit code 0, got {script.returncode}:\n{script.output}")


def _wait_ready(ports: Ports, script: ScriptThread) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not _answers(ports, f"/v2/models/{COUNTDOWN}/ready"):
        if script.process is None:
            raise RuntimeError(f"The script ended before its models were ready:\n{script.output}")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"Expected models that are ready after {_TIMEOUT_S:.0f} s, got none")
        time.sleep(0.05)


def _answers(ports: Ports, path: str) -> bool:
    try:
        return _http(ports.http, "GET", path)[0] == http.client.OK
    except ConnectionError:
        return False


def _start(stack: contextlib.ExitStack, serving: AbstractContextManager[None], ports: Ports) -> str:
    stack.enter_context(serving)
    return str(ports)


def _stop(stack: contextlib.ExitStack, ports: Ports) -> str:
    stack.close()
    if _answers(ports, "/v2/health/live"):
        raise RuntimeError(f"Expected that the server ended, but port {ports.http} answers")
    return "nothing listens any more"


def _questions(ports: Ports) -> dict[str, Callable[[], str]]:
    http_url = f"http://{TRITON_LOCAL_IP}:{ports.http}"
    grpc_url = f"grpc://{TRITON_LOCAL_IP}:{ports.grpc}"
    return {
        "ModelClient over HTTP": lambda: _ask(http_url),
        "ModelClient over gRPC": lambda: _ask(grpc_url),
        "FuturesModelClient over HTTP": lambda: _ask_later(http_url),
        "FuturesModelClient over gRPC": lambda: _ask_later(grpc_url),
        "AsyncioModelClient over HTTP": lambda: asyncio.run(_ask_async(http_url)),
        "AsyncioModelClient over gRPC": lambda: asyncio.run(_ask_async(grpc_url)),
        "DecoupledModelClient over gRPC": lambda: _read_stream(grpc_url),
        "AsyncioDecoupledModelClient over gRPC": lambda: asyncio.run(_read_stream_async(grpc_url)),
        "generate_stream over HTTP": lambda: _read_events(ports),
        "metrics": lambda: _read_metrics(ports),
    }


def _ask(url: str) -> str:
    with ModelClient(url, ADD_SUB, init_timeout_s=_TIMEOUT_S) as client:
        return _checked_sums(client.infer_batch(a=_ONES, b=_ONES))


def _ask_later(url: str) -> str:
    with FuturesModelClient(url, ADD_SUB, init_timeout_s=_TIMEOUT_S) as client:
        return _checked_sums(client.infer_batch(a=_ONES, b=_ONES).result(_TIMEOUT_S))


async def _ask_async(url: str) -> str:
    async with AsyncioModelClient(url, ADD_SUB, init_timeout_s=_TIMEOUT_S) as client:
        return _checked_sums(await client.infer_batch(a=_ONES, b=_ONES))


def _checked_sums(outputs: dict[str, Any]) -> str:
    text = ", ".join(f"{name}: {outputs[name].tolist()}" for name in ("add", "sub"))
    expected = "add: [[2.0], [2.0]], sub: [[0.0], [0.0]]"
    if text != expected:
        raise ValueError(f"Expected {expected}, got {text}")
    return text


def _read_stream(url: str) -> str:
    with DecoupledModelClient(url, COUNTDOWN, init_timeout_s=_TIMEOUT_S) as client:
        return _checked_numbers(
            [response["number"].item() for response in client.infer_sample(start=_START)]
        )


async def _read_stream_async(url: str) -> str:
    async with AsyncioDecoupledModelClient(url, COUNTDOWN, init_timeout_s=_TIMEOUT_S) as client:
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
