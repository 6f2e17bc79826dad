# SPDX-License-Identifier: Apache-2.0
"""Waiting for a server and a model: what to ask, when to ask again, and when to give up.

Nothing here talks to a server. A wait is a generator of calls and pauses; `utils` and
`asyncio_utils` carry them out and send back what came of each call.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pytriton.client.connecting import LONGEST_LIMIT_S
from pytriton.client.exceptions import (
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.failures import failure_of
from pytriton.client.protocols import Protocol
from pytriton.model_config.parser import ModelConfigParser
from pytriton.model_config.triton_model_config import TritonModelConfig

DEFAULT_WAIT_FOR_SERVER_TIMEOUT_S = 60.0
DEFAULT_WAIT_FOR_MODEL_TIMEOUT_S = 300.0
AS_LONG_AS_IT_TAKES_S = threading.TIMEOUT_MAX  # some event loops do not take infinity

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
SHORTEST_LIMIT_S = 0.001  # a call needs a positive one, also when the time is just up

Headers = Mapping[str, str] | None
T = TypeVar("T")


def check_limit(name: str, seconds: float) -> None:
    """A time limit may be zero, negative or infinite, but it is a number: NaN never passes.

    Raises:
        PyTritonClientValueError: It is not.
    """
    if math.isnan(seconds):
        raise PyTritonClientValueError(f"{name}: expected a number of seconds, got {seconds}")


class Call(NamedTuple):
    """A method of an official client to call. Its answer, or its failure, is sent to the wait."""

    method: str
    arguments: tuple[str, ...]
    named_arguments: dict[str, Any]
    limit_s: float


# The numbers are pauses in seconds.
Steps: TypeAlias = Generator[Call | float, Any, T]


class Wait:
    """One wait with a deadline; pauses between two looks grow up to a second.

    Args:
        timeout_s: time allowed.
        clock: tells the time in seconds.
        pause_s: pause between two looks, where it is to stay the same.

    Raises:
        PyTritonClientValueError: The time is not a number.
    """

    def __init__(
        self,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause_s: float | None = None,
    ) -> None:
        check_limit("timeout_s", timeout_s)
        self.last_problem = "it is not ready"
        self._timeout_s = timeout_s
        self._clock = clock
        self._deadline = clock() + timeout_s
        self._pause_s = _FIRST_PAUSE_S if pause_s is None else pause_s
        self._longest_pause_s = _LONGEST_PAUSE_S if pause_s is None else pause_s

    def __str__(self) -> str:
        return f"{round(self._timeout_s, 3):g} s"

    def limit_s(self) -> float:
        """How long the next call may take."""
        return min(max(self._deadline - self._clock(), SHORTEST_LIMIT_S), LONGEST_LIMIT_S)

    def next_pause_s(self) -> float | None:
        """How long to wait before the next look; None where the time is up."""
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            return None
        pause, self._pause_s = self._pause_s, min(self._pause_s * 2, self._longest_pause_s)
        return min(pause, remaining)


class Model(NamedTuple):
    """What the calls have to name: a model and its version."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"model {self.name}" + (f" version {self.version}" if self.version else "")

    @property
    def arguments(self) -> tuple[str, str]:
        return self.name, self.version or ""


def server_ready(wait: Wait, headers: Headers, goal: object = "server") -> Steps[None]:
    """Until the server is ready and live.

    Raises:
        PyTritonClientTimeoutError: It was not in time.
    """
    if not (yield from _until_true(wait, headers, ("is_server_ready", "is_server_live"))):
        raise PyTritonClientTimeoutError(
            f"Waiting for server to be ready timed out. Timeout while waiting for {goal}: {wait}. "
            f"At the end: {wait.last_problem}."
        )


def model_ready(wait: Wait, headers: Headers, model: Model) -> Steps[None]:
    """Until the server and the model are ready.

    Raises:
        PyTritonClientTimeoutError: The server was not in time.
        PyTritonClientModelUnavailableError: The model was not.
    """
    yield from server_ready(wait, headers, goal=model)
    if not (yield from _until_true(wait, headers, ("is_model_ready",), model.arguments)):
        raise PyTritonClientModelUnavailableError(
            f"Waiting for {model} to be ready timed out. Timeout while waiting for {model}, whose "
            f"server is ready: {wait}. At the end: {wait.last_problem}."
        )


def model_config(
    wait: Wait, headers: Headers, model: Model, protocol: Protocol
) -> Steps[TritonModelConfig]:
    """The model's configuration, once it is ready.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time, or did not answer.
        PyTritonClientModelUnavailableError: The model was not ready in time.
        PyTritonClientInferenceServerError: The server refused to tell it.
    """
    yield from model_ready(wait, headers, model)
    named_arguments = {"headers": headers, **protocol.config_arguments()}
    answer = yield Call("get_model_config", model.arguments, named_arguments, wait.limit_s())
    if isinstance(answer, Exception):
        raise failure_of(answer, "request for a model's configuration", str(wait)) from answer
    return ModelConfigParser.from_dict(protocol.config_from(answer))


def _until_true(
    wait: Wait, headers: Headers, questions: tuple[str, ...], arguments: tuple[str, ...] = ()
) -> Steps[bool]:
    """Ask until all questions are answered with yes; whether that was in time."""
    while True:
        for question in questions:
            answer = yield Call(question, arguments, {"headers": headers}, wait.limit_s())
            if isinstance(answer, Exception):
                wait.last_problem = f"{type(answer).__name__}: {answer}"
                break
            if not answer:
                wait.last_problem = "it is not ready"
                break
        else:
            return True
        pause_s = wait.next_pause_s()
        if pause_s is None:
            return False
        yield pause_s
