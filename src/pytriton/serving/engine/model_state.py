# SPDX-License-Identifier: Apache-2.0
"""The states of a model version, the transitions between them, and the wait for an idle model."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.serving.engine.hidden_exceptions import HiddenExceptions
    from pytriton.serving.engine.quotas import ModelQuotas

UNLOADED = "unloaded"  # the reason of a version that was unloaded on purpose
_MAX_REASON_CHARS = 500


class VersionState(enum.Enum):
    """The state of a model version; the values are Triton's names."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


TRANSITIONS: dict[VersionState, frozenset[VersionState]] = {
    VersionState.LOADING: frozenset({VersionState.READY, VersionState.UNAVAILABLE}),
    VersionState.READY: frozenset({VersionState.UNLOADING, VersionState.UNAVAILABLE}),
    VersionState.UNLOADING: frozenset({VersionState.UNAVAILABLE}),
    VersionState.UNAVAILABLE: frozenset({VersionState.LOADING}),
}


def reason_for_clients(reason: str, *, is_told: bool) -> str:
    """Returns the reason of a state for clients of the model; the index has it whole.

    Further lines, such as a traceback, are for the log and the index only.
    """
    if not is_told:  # an exception of the model may have said it
        return "the server's log says why"
    return reason.partition("\n")[0][:_MAX_REASON_CHARS]


def _do_nothing() -> None:
    """Report no change: the model is not registered yet."""


class VersionLifecycle:
    """The state of one model version, and why it is in that state.

    It is a base class and not a part, because each request reads `state`.

    Attributes:
        on_changed: Called after the state or readiness has changed; the engine sets it.
        state: The state between loading and unloading.
        reason: Why it is in this state; empty if there is no special reason.
        quotas: What principals may ask of it; None: there are no limits.
        gave_up_requests: Whether it was stopped before its requests were finished.
        hidden: What clients get of its exceptions; None: their texts.
    """

    # Of the class: objects have few enough attributes to be fast.
    quotas: ModelQuotas | None = None
    gave_up_requests = False
    hidden: HiddenExceptions | None = None

    def __init__(self) -> None:
        self.on_changed: Callable[[], None] = _do_nothing
        self.state = VersionState.LOADING
        self.reason = ""

    def set_quotas(self, quotas: ModelQuotas | None) -> None:
        """Limit principals from now on."""
        self.quotas = quotas

    def become(self, state: VersionState, reason: str = "") -> None:
        """Change the state; a transition that the table does not allow is a bug."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        self.reason = reason
        self.on_changed()

    def withdraw(self) -> None:
        """Become unavailable because it is unloaded on purpose."""
        if self.state is VersionState.READY:
            self.become(VersionState.UNLOADING)
        if self.state is not VersionState.UNAVAILABLE:
            self.become(VersionState.UNAVAILABLE, UNLOADED)

    def fail(self, reason: str) -> None:
        """Become unavailable because it cannot serve any more, unless it is so already."""
        if self.state in (VersionState.LOADING, VersionState.READY):
            self.become(VersionState.UNAVAILABLE, reason)

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was unloaded on purpose, so that readiness does not wait for it."""
        return self.state is VersionState.UNLOADING or self.reason == UNLOADED


class IdleWait:
    """The coroutines that wait until a model has no requests.

    Attributes:
        is_awaited: Whether there are any; a model calls `end` only then.
    """

    __slots__ = ("_future", "is_awaited")

    def __init__(self) -> None:
        self.is_awaited = False
        self._future: asyncio.Future[None] | None = None

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for `end`, at most for `timeout_s`."""
        if self._future is None or self._future.done():
            self._future = asyncio.get_running_loop().create_future()
            self.is_awaited = True
        await asyncio.wait([self._future], timeout=timeout_s)

    def end(self) -> None:
        """Resume the coroutines: the model is idle."""
        self.is_awaited = False
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
