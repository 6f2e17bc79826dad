# SPDX-License-Identifier: Apache-2.0
"""Waiting for a server and a model: which calls to make, when to retry, and when to stop.

Nothing here communicates with a server. A wait is a generator of calls and pauses; `utils` and
`asyncio_utils` execute them and send the result of each call back. A wait of more than a second
logs one warning with its goal and the reason for the delay.
"""

from __future__ import annotations

import difflib
import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pytriton.client.connections import MAX_TIMEOUT_S
from pytriton.client.exceptions import (
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.protocols import Protocol, failure_of, is_timeout, states_in, text_of
from pytriton.model_config.parser import ModelConfigParser
from pytriton.model_config.triton_model_config import TritonModelConfig

DEFAULT_WAIT_FOR_SERVER_TIMEOUT_S = 60.0
DEFAULT_WAIT_FOR_MODEL_TIMEOUT_S = 300.0
NO_TIMEOUT_S = threading.TIMEOUT_MAX  # some event loops do not accept infinity

logger = logging.getLogger(__name__)

_WARN_AFTER_S = 1.0  # no warning about a server or model that is just starting
_FIRST_PAUSE_S = 0.01
_MAX_PAUSE_S = 1.0
MIN_TIMEOUT_S = 0.001  # a call needs a positive timeout, even at the deadline

# How long a client waits by default for a model that a ready server does not know: a name like that
# of another model is probably misspelt, but a program may bind one model long after another.
_MISSPELT_PATIENCE_S = 5.0
_UNKNOWN_PATIENCE_S = 30.0

_NOT_READY = "it is not ready"
_UNKNOWN = "unknown model"  # in the server's error
_SUGGESTION = "did you mean"  # also, where it has a model of a similar name
_RESTRICTED = "restricted"  # in the server's error for a missing token

Headers = Mapping[str, str] | None
T = TypeVar("T")


def check_limit(name: str, seconds: float) -> None:
    """Checks that a timeout is not NaN; it may be zero, negative or infinite.

    Raises:
        PyTritonClientValueError: It is NaN.
    """
    if math.isnan(seconds):
        raise PyTritonClientValueError(f"{name}: expected a number of seconds, got {seconds}")


class ClientCall(NamedTuple):
    """A method of a service to call. Its result or exception is sent to the wait."""

    method: str
    arguments: tuple[str, ...]
    named_arguments: dict[str, Any]
    limit_s: float


# The numbers are pauses in seconds.
Steps: TypeAlias = Generator[ClientCall | float, Any, T]


class ReadinessWait:
    """One wait with a deadline; the pauses between two checks grow up to a second.

    Args:
        timeout_s: the timeout.
        clock: returns the time in seconds.
        pause_s: constant pause between two checks.
        address: address of the server for the log.
        gives_up: whether it ends early if the server is ready, but does not know the model and has
            others. The timeout of a user is waited for.

    Raises:
        PyTritonClientValueError: The timeout is not a number.
    """

    def __init__(
        self,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause_s: float | None = None,
        address: str = "the server",
        *,
        gives_up: bool = False,
    ) -> None:
        check_limit("timeout_s", timeout_s)
        self.last_problem: str = _NOT_READY
        self._timeout_s = timeout_s
        self._clock = clock
        self.address = address
        self._gives_up = gives_up
        self._unknown_since_s: float | None = None
        self._deadline = clock() + timeout_s
        self._warn_at_s: float | None = clock() + _WARN_AFTER_S
        self._list_at_s = math.inf
        self._pause_s = _FIRST_PAUSE_S if pause_s is None else pause_s
        self._max_pause_s = _MAX_PAUSE_S if pause_s is None else pause_s

    def __str__(self) -> str:
        return f"{round(self._timeout_s, 3):g} s"

    def begin_model(self) -> None:
        """Notes that the server is ready, and its model is waited for from now on."""
        self._list_at_s = self._clock() + _WARN_AFTER_S
        if self._warn_at_s is not None:  # the warning has the list in it
            self._list_at_s = min(self._list_at_s, self._warn_at_s)

    def is_listing_due(self) -> bool:
        """Whether to ask for the server's models; it is true once."""
        if self._clock() < self._list_at_s:
            return False
        self._list_at_s = math.inf
        return True

    def warn_once(self, goal: object) -> None:
        """Logs a warning once, if the wait has taken long enough."""
        if self._warn_at_s is None or self._clock() < self._warn_at_s:
            return
        self._warn_at_s = None
        logger.warning(
            "Still waiting for %s at %s, for up to %.0f s more: %s",
            goal,
            self.address,
            max(self._deadline - self._clock(), 0.0),
            self.last_problem,
        )

    def given_up_after_s(self, reason: str, others: OtherModels) -> float | None:
        """Returns for how long the model was unknown if that is enough; None to wait on."""
        is_misspelt = others.has_similar or _SUGGESTION in reason.lower()
        if not self._gives_up or _UNKNOWN not in reason or not (is_misspelt or others.are_known):
            self._unknown_since_s = None
            return None
        if self._unknown_since_s is None:
            self._unknown_since_s = self._clock()
        patience_s = _MISSPELT_PATIENCE_S if is_misspelt else _UNKNOWN_PATIENCE_S
        is_enough = self._clock() - self._unknown_since_s >= patience_s
        return patience_s if is_enough else None

    def record_failure(self, error: Exception) -> None:
        """Records why a call failed; a timeout does not replace a more specific error."""
        if self.last_problem == _NOT_READY or not is_timeout(error):
            self.last_problem = text_of(error)

    def limit_s(self) -> float:
        """Returns the timeout of the next call."""
        return min(max(self._deadline - self._clock(), MIN_TIMEOUT_S), MAX_TIMEOUT_S)

    def next_pause_s(self) -> float | None:
        """Returns the pause before the next check, or None after the deadline."""
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            return None
        pause, self._pause_s = self._pause_s, min(self._pause_s * 2, self._max_pause_s)
        return min(pause, remaining)


class OtherModels(NamedTuple):
    """The models of a server that does not have the one that is wanted."""

    text: str = ""  # a sentence; empty if the server does not list them
    are_known: bool = False  # whether there are any
    has_similar: bool = False  # whether one of them has a similar name


class ModelVersion(NamedTuple):
    """The model and the version that calls refer to."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"model {self.name}" + (f" version {self.version}" if self.version else "")

    @property
    def arguments(self) -> tuple[str, str]:
        return self.name, self.version or ""


def server_ready(wait: ReadinessWait, headers: Headers, goal: object = "server") -> Steps[None]:
    """Waits until the server is ready and live.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time.
    """
    while not (yield from _is_server_ready(wait, headers)):
        wait.warn_once(goal)
        if not (yield from _has_paused(wait)):
            raise PyTritonClientTimeoutError(
                f"Waiting for server to be ready timed out. Timeout while waiting for {goal}: "
                f"{wait}. Last problem: {wait.last_problem}."
            )


def _is_server_ready(wait: ReadinessWait, headers: Headers) -> Steps[bool]:
    for method in ("is_server_ready", "is_server_live"):
        answer = yield ClientCall(method, (), {"headers": headers}, wait.limit_s())
        if isinstance(answer, Exception):
            wait.record_failure(answer)
            return False
        if not answer:
            wait.last_problem = _NOT_READY
            return False
    return True


def _has_paused(wait: ReadinessWait) -> Steps[bool]:
    """Pauses before the next check; returns False if there is no time left."""
    pause_s = wait.next_pause_s()
    if pause_s is None:
        return False
    yield pause_s
    return True


def model_ready(wait: ReadinessWait, headers: Headers, model: ModelVersion) -> Steps[None]:
    """Waits until the server and the model are ready.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time.
        PyTritonClientModelUnavailableError: The model was not ready in time.
    """
    yield from server_ready(wait, headers, goal=model)
    reason, others = _NOT_READY, OtherModels()
    wait.begin_model()
    while True:
        answer = yield ClientCall(
            "is_model_ready", model.arguments, {"headers": headers}, wait.limit_s()
        )
        if isinstance(answer, Exception):
            wait.record_failure(answer)
        elif answer:
            return
        else:
            reason = yield from _why_not_ready(wait, headers, model, reason)
            if wait.is_listing_due():
                others = yield from _other_models(wait, headers, model)
            wait.last_problem = f"{_closed(reason)}{others.text}"
            given_up_s = wait.given_up_after_s(reason, others)
            if given_up_s is not None:
                raise PyTritonClientModelUnavailableError(
                    f"Waiting for {model} to be ready timed out after {given_up_s:g} s, because "
                    f"{wait.address} is ready and does not know it: {wait.last_problem} To wait "
                    "longer for a model that comes later, give init_timeout_s."
                )
        wait.warn_once(model)
        if not (yield from _has_paused(wait)):
            raise PyTritonClientModelUnavailableError(
                f"Waiting for {model} to be ready timed out. Timeout while waiting for {model} at "
                f"{wait.address}: {wait}. The server is ready, but not the model: "
                f"{wait.last_problem}"
            )


def _closed(sentence: str) -> str:
    return sentence if sentence.endswith("?") else f"{sentence}."


def _why_not_ready(
    wait: ReadinessWait, headers: Headers, model: ModelVersion, known: str
) -> Steps[str]:
    """Returns the server's reason why a model is not ready; if it has no time, the known one."""
    named_arguments = {"headers": headers}
    answer = yield ClientCall("get_model_config", model.arguments, named_arguments, wait.limit_s())
    if is_timeout(answer):
        return known
    text = text_of(answer).rstrip(".") if isinstance(answer, Exception) else None
    return _NOT_READY if text is None or _RESTRICTED in text else text


def _other_models(wait: ReadinessWait, headers: Headers, model: ModelVersion) -> Steps[OtherModels]:
    """Returns what a server says about its models."""
    named_arguments = {"headers": headers}
    answer = yield ClientCall("get_model_repository_index", (), named_arguments, wait.limit_s())
    text = text_of(answer) if isinstance(answer, Exception) else None
    if text is not None:
        how = f" `pytriton models -u {wait.address}` lists its models."
        return OtherModels(how if _RESTRICTED in text else "")
    names = sorted({name for name, _, _ in states_in(answer)})
    if model.name in names:
        return OtherModels()
    if not names:
        return OtherModels(" It has no models.")
    alike = difflib.get_close_matches(model.name, names, n=1)
    hint = f" Did you mean {alike[0]}?" if alike else ""
    return OtherModels(
        f" Its models are: {', '.join(names)}.{hint}", are_known=True, has_similar=bool(alike)
    )


def model_config(
    wait: ReadinessWait, headers: Headers, model: ModelVersion, protocol: Protocol
) -> Steps[TritonModelConfig]:
    """Waits until the model is ready and returns its configuration.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time, or did not answer.
        PyTritonClientModelUnavailableError: The model was not ready in time.
        PyTritonClientInferenceServerError: The server refused the request for it.
    """
    yield from model_ready(wait, headers, model)
    named_arguments = {"headers": headers, **protocol.config_arguments()}
    answer = yield ClientCall("get_model_config", model.arguments, named_arguments, wait.limit_s())
    if isinstance(answer, Exception):
        raise failure_of(answer, "request for a model's configuration", str(wait)) from answer
    # Over gRPC, it is in a message.
    return ModelConfigParser.from_dict(answer.get("config", answer))
