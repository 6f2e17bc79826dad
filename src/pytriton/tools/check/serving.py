# SPDX-License-Identifier: Apache-2.0
"""Checks whether serving works on this machine: a server starts, answers requests, and stops.

Requests are sent with each client over each protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
import pathlib
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from http import HTTPStatus
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
from pytriton.tools.check.add_sub_server import ADD_SUB, COUNTDOWN, Ports, bind_add_sub, bind_models
from pytriton.tools.check.report import CheckReport, Finding, State
from pytriton.tools.check.utils import ScriptThread
from pytriton.triton import RemoteTriton, Triton, TritonSecurityConfig

ClientCheck = Callable[[], str]  # returns the result as text, raises if it is not as expected

_TIMEOUT_S = 10.0
_LIMITS: dict[str, Any] = {"init_timeout_s": _TIMEOUT_S, "inference_timeout_s": _TIMEOUT_S}
_ONES = np.ones((2, 1), np.float32)
_START = np.array([3], np.int32)
_STREAM = [3, 2, 1]
_REMOTE = "RemoteAddSub"

logger = logging.getLogger(__name__)

_PROCESS_LIMIT_S = 120.0  # for the start of a server and for its end
_STEP_LIMIT_S = 30.0  # longer than the clients' own timeouts, in case these do not work
_SHOWN_LINES = 10


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


_REPOSITORY = pathlib.Path(__file__).with_name("model_repository")


def example_add_sub(folder: pathlib.Path, report: CheckReport) -> None:
    """Serve from this process and send requests; the folder gets the server's log."""
    ports, token = Ports.free(), secrets.token_urlsafe()
    checks = all_client_checks(ports) | {"RemoteTriton": lambda: bind_remotely(ports, token)}
    report.begin("Checking a server in this process")
    _check(report, ports, _server_here(ports, token, folder / "server_log.txt"), checks)


def example_add_sub_script(folder: pathlib.Path, report: CheckReport) -> None:
    """Serve from a script in another process and send requests; its output is logged."""
    ports = Ports.free()
    numbers = (str(port) for port in (ports.http, ports.grpc, ports.metrics))
    command = _child("pytriton.tools.check.add_sub_server", *numbers)
    report.begin("Checking a server in a script")
    _check(report, ports, _server_in_script(command, ports, folder), all_client_checks(ports))


def example_repository(folder: pathlib.Path, report: CheckReport) -> None:
    """Serve a model repository and send requests; the server's output is logged."""
    ports = Ports.free()
    settings: dict[str, object] = {"model-repository": _REPOSITORY}
    for name in ("http", "grpc", "metrics"):
        settings |= {f"{name}-port": getattr(ports, name), f"{name}-address": TRITON_LOCAL_IP}
    options = (f"--{name}={value}" for name, value in settings.items())
    command = _child("pytriton.serving.server.tritonserver", *options)
    report.begin("Checking tritonserver with a model repository")
    serving = _server_in_script(command, ports, folder, ADD_SUB)
    _check(report, ports, serving, model_client_checks(ports))


def _child(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module until this process ends."""
    return [
        sys.executable,
        "-m",
        "pytriton.tools.check.child",
        str(os.getpid()),
        module,
        *arguments,
    ]


def _check(
    report: CheckReport,
    ports: Ports,
    serving: AbstractContextManager[None],
    checks: dict[str, ClientCheck],
) -> None:
    with contextlib.ExitStack() as stack, _no_proxy():
        if not _attempt(report, "server starts", partial(_start, stack, serving, ports)):
            return
        if _attempt(report, "server answers", partial(_check_health, ports)):
            for name, check in checks.items():
                _attempt(report, name, partial(_within_limit, check))
        _attempt(report, "server stops", partial(_stop, stack, ports))


def _attempt(report: CheckReport, name: str, action: Callable[[], str]) -> bool:
    """Run an action and report its result; returns whether it succeeded."""
    started_s = time.perf_counter()
    try:
        text = action()
    except Exception as error:
        logger.exception("Error occurred in command: %s", name)
        report.add(Finding.of_error(name, error))
        return False
    took_ms = round((time.perf_counter() - started_s) * 1000, 1)
    report.add(Finding(name, text, State.OK, took_ms))
    return True


def _within_limit(check: ClientCheck) -> str:
    """Run a check in a thread, so that a check that hangs does not stop the others."""
    answer: Future[str] = Future()

    def run() -> None:
        try:
            answer.set_result(check())
        except BaseException as error:  # noqa: BLE001  raised by `answer.result()`
            answer.set_exception(error)

    thread = threading.Thread(target=run, name="pytriton-check", daemon=True)
    thread.start()
    thread.join(_STEP_LIMIT_S)
    if thread.is_alive():
        raise TimeoutError(f"Expected an answer within {_STEP_LIMIT_S:g} s, got none")
    return answer.result()


@contextlib.contextmanager
def _no_proxy() -> Iterator[None]:
    """Let gRPC clients connect without a proxy, which they would use even on this machine."""
    before = os.environ.get("no_proxy")
    os.environ["no_proxy"] = TRITON_LOCAL_IP
    try:
        yield
    finally:
        del os.environ["no_proxy"]
        if before is not None:
            os.environ["no_proxy"] = before


@contextlib.contextmanager
def _server_here(ports: Ports, access_token: str, log_file: pathlib.Path) -> Iterator[None]:
    security = TritonSecurityConfig(access_token=access_token)
    with Triton(config=ports.config(log_file), security_config=security) as triton:
        bind_models(triton)
        yield


@contextlib.contextmanager
def _server_in_script(
    command: list[str], ports: Ports, folder: pathlib.Path, model_name: str = COUNTDOWN
) -> Iterator[None]:
    with ScriptThread(command, workdir=folder, name="server") as script:
        try:
            _wait_ready(ports, script, model_name)
            yield
        finally:
            _interrupt(script)
    if script.returncode not in (0, -signal.SIGINT):
        raise RuntimeError(f"Expected exit code 0, got {script.returncode}:\n{_last_lines(script)}")


def _interrupt(script: ScriptThread) -> None:
    process = script.process
    if process is not None:
        process.send_signal(signal.SIGINT)
        script.join(_PROCESS_LIMIT_S)
        if script.is_alive():
            process.kill()


def _wait_ready(ports: Ports, script: ScriptThread, model_name: str) -> None:
    deadline_s = time.monotonic() + _PROCESS_LIMIT_S
    while not responds_ok(ports, f"/v2/models/{model_name}/ready"):
        if script.process is None:
            raise RuntimeError(f"The server ended before it was ready:\n{_last_lines(script)}")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"Expected {model_name} to be ready after {_PROCESS_LIMIT_S:g} s")
        time.sleep(0.05)


def _last_lines(script: ScriptThread) -> str:
    """Returns the last lines of the output, which have the reason; the log has all lines."""
    return "\n".join(script.output.splitlines()[-_SHOWN_LINES:])


def _start(stack: contextlib.ExitStack, serving: AbstractContextManager[None], ports: Ports) -> str:
    stack.enter_context(serving)
    return str(ports)


def _check_health(ports: Ports) -> str:
    path = "/v2/health/ready"
    status = status_of(ports, path)
    if status != HTTPStatus.OK:
        raise ValueError(f"Expected 200 from {path}, got {status}")
    return f"200 from {path}"


def _stop(stack: contextlib.ExitStack, ports: Ports) -> str:
    stack.close()
    if responds_ok(ports, "/v2/health/live"):
        raise RuntimeError(f"Expected that the server ended, but port {ports.http} answers")
    return "nothing listens any more"
