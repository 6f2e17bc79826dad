# SPDX-License-Identifier: Apache-2.0
"""Waiting for a server and a model: what to ask, when to ask again, and when to give up.

Nothing here talks to a server. A wait is a generator of calls and pauses; `utils` and
`asyncio_utils` carry them out and send back what came of each call. A wait that takes longer than
a moment says in the log what it waits for, and why in vain.
"""

from __future__ import annotations

import difflib
import logging
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
from pytriton.client.failures import failure_of, is_late, text_of
from pytriton.client.protocols import Protocol
from pytriton.model_config.parser import ModelConfigParser
from pytriton.model_config.triton_model_config import TritonModelConfig

DEFAULT_WAIT_FOR_SERVER_TIMEOUT_S = 60.0
DEFAULT_WAIT_FOR_MODEL_TIMEOUT_S = 300.0
AS_LONG_AS_IT_TAKES_S = threading.TIMEOUT_MAX  # some event loops do not take infinity

logger = logging.getLogger(__name__)

_TELL_AFTER_S = 1.0  # a server or model that is just being started is not worth a word
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
SHORTEST_LIMIT_S = 0.001  # a call needs a positive one, also when the time is just up

_NOT_READY = "it is not ready"
_RESTRICTED = "restricted"  # what a server says to who has no token

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
        address: what the server is called in the log.

    Raises:
        PyTritonClientValueError: The time is not a number.
    """

    def __init__(
        self,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause_s: float | None = None,
        address: str = "the server",
    ) -> None:
        check_limit("timeout_s", timeout_s)
        self.last_problem = _NOT_READY
        self._timeout_s = timeout_s
        self._clock = clock
        self._address = address
        self._deadline = clock() + timeout_s
        self._tell_at_s: float | None = clock() + _TELL_AFTER_S
        self._pause_s = _FIRST_PAUSE_S if pause_s is None else pause_s
        self._longest_pause_s = _LONGEST_PAUSE_S if pause_s is None else pause_s

    def __str__(self) -> str:
        return f"{round(self._timeout_s, 3):g} s"

    def is_time_to_tell(self) -> bool:
        """Whether it has taken long enough to say so; that is done once."""
        return self._tell_at_s is not None and self._clock() >= self._tell_at_s

    def tell(self, goal: object) -> None:
        """Say once in the log what is waited for, when that is worth it."""
        if not self.is_time_to_tell():
            return
        self._tell_at_s = None
        logger.warning(
            "Still waiting for %s at %s, for up to %.0f s more: %s",
            goal,
            self._address,
            max(self._deadline - self._clock(), 0.0),
            self.last_problem,
        )

    def note(self, error: Exception) -> None:
        """Keep why a call failed; that time was up tells less than what was known before."""
        if self.last_problem == _NOT_READY or not is_late(error):
            self.last_problem = f"{type(error).__name__}: {error}" if str(error) else text_of(error)

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
    while not (yield from _is_server_ready(wait, headers)):
        wait.tell(goal)
        if not (yield from _has_paused(wait)):
            raise PyTritonClientTimeoutError(
                f"Waiting for server to be ready timed out. Timeout while waiting for {goal}: "
                f"{wait}. At the end: {wait.last_problem}."
            )


def _is_server_ready(wait: Wait, headers: Headers) -> Steps[bool]:
    for question in ("is_server_ready", "is_server_live"):
        answer = yield Call(question, (), {"headers": headers}, wait.limit_s())
        if isinstance(answer, Exception):
            wait.note(answer)
            return False
        if not answer:
            wait.last_problem = _NOT_READY
            return False
    return True


def _has_paused(wait: Wait) -> Steps[bool]:
    """Wait for the next look; False where there is no time for one."""
    pause_s = wait.next_pause_s()
    if pause_s is None:
        return False
    yield pause_s
    return True


def model_ready(wait: Wait, headers: Headers, model: Model, protocol: Protocol) -> Steps[None]:
    """Until the server and the model are ready.

    Raises:
        PyTritonClientTimeoutError: The server was not in time.
        PyTritonClientModelUnavailableError: The model was not.
    """
    yield from server_ready(wait, headers, goal=model)
    there_are = ""
    while True:
        answer = yield Call("is_model_ready", model.arguments, {"headers": headers}, wait.limit_s())
        if isinstance(answer, Exception):
            wait.note(answer)
        elif answer:
            return
        else:
            reason = yield from _why_not_ready(wait, headers, model)
            if wait.is_time_to_tell():
                there_are = yield from _other_models(wait, headers, model, protocol)
            wait.last_problem = reason + there_are
        wait.tell(model)
        if not (yield from _has_paused(wait)):
            raise PyTritonClientModelUnavailableError(
                f"Waiting for {model} to be ready timed out. Timeout while waiting for {model}, "
                f"whose server is ready: {wait}. At the end: {wait.last_problem}."
            )


def _why_not_ready(wait: Wait, headers: Headers, model: Model) -> Steps[str]:
    """What the server says of a model that is not ready."""
    named_arguments = {"headers": headers}
    answer = yield Call("get_model_config", model.arguments, named_arguments, wait.limit_s())
    text = text_of(answer) if isinstance(answer, Exception) else None
    return _NOT_READY if text is None or _RESTRICTED in text else text


def _other_models(wait: Wait, headers: Headers, model: Model, protocol: Protocol) -> Steps[str]:
    """The models that the server has, as a part of a sentence; nothing where it does not tell."""
    named_arguments = {"headers": headers}
    answer = yield Call("get_model_repository_index", (), named_arguments, wait.limit_s())
    text = text_of(answer) if isinstance(answer, Exception) else None
    if text is not None:
        return "; it lists its models with an access_token" if _RESTRICTED in text else ""
    names = sorted({name for name, _, _ in protocol.states_in(protocol.models_in(answer))})
    if model.name in names:
        return ""
    alike = difflib.get_close_matches(model.name, names, n=1)
    hint = f", perhaps {alike[0]} is meant" if alike else ""
    return f"; its models are: {', '.join(names) or 'none'}{hint}"


def model_config(
    wait: Wait, headers: Headers, model: Model, protocol: Protocol
) -> Steps[TritonModelConfig]:
    """The model's configuration, once it is ready.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time, or did not answer.
        PyTritonClientModelUnavailableError: The model was not ready in time.
        PyTritonClientInferenceServerError: The server refused to tell it.
    """
    yield from model_ready(wait, headers, model, protocol)
    named_arguments = {"headers": headers, **protocol.config_arguments()}
    answer = yield Call("get_model_config", model.arguments, named_arguments, wait.limit_s())
    if isinstance(answer, Exception):
        raise failure_of(answer, "request for a model's configuration", str(wait)) from answer
    return ModelConfigParser.from_dict(protocol.config_from(answer))
