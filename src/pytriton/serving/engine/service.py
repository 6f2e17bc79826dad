# SPDX-License-Identifier: Apache-2.0
"""The instances that serve a model, and the time in which there is none: it may have a limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError, UnavailableError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.base import Instance
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.scheduling import Scheduler


class Service:
    """Which instances get requests, and how long there has been none.

    Args:
        spec: The model, with the time after which requests are refused; 0: never.
        loop: The event loop.
        on_too_long: Called when this time is over.

    Attributes:
        instances: Those that get requests.
        retired: Those that were stopped when they had no requests any more, and have not ended yet.
        reason: Why there is no instance.
    """

    def __init__(
        self, spec: ModelSpec, loop: asyncio.AbstractEventLoop, on_too_long: Callable[[], None]
    ) -> None:
        self.instances: set[Instance] = set()
        self.retired: set[Instance] = set()
        self.reason = ""
        self._spec = spec
        self._loop = loop
        self._on_too_long = on_too_long
        self._timer: asyncio.TimerHandle | None = None
        self._since_ns = 0
        self._limit_s = 0.0

    def add(self, instance: Instance) -> None:
        """Serve with an instance."""
        self.stop()
        self.instances.add(instance)

    def remove(self, instance: Instance, reason: str) -> None:
        """Serve without an instance; without the last one, requests wait for another."""
        if instance not in self.instances:
            return
        self.instances.discard(instance)
        if self.instances:
            return
        self.reason = reason
        self._since_ns = time.monotonic_ns()
        if self._spec.no_instance_timeout_s:
            self.limit_wait(self._spec.no_instance_timeout_s)

    def limit_wait(self, limit_s: float) -> None:
        """Let requests wait so long for an instance, unless they have a limit already."""
        if not self.instances and self._timer is None:
            self._limit_s = limit_s
            self._timer = self._loop.call_later(limit_s, self._on_too_long)

    def stop(self) -> None:
        """Wait for an instance no longer: there is one, or there will never be one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def error(self) -> ServerError:
        """Returns the error of a request that would have to wait for too long."""
        elapsed_s = (time.monotonic_ns() - self._since_ns) / 1e9
        spec = self._spec
        # More lines follow if a start failed, such as a traceback. Those are for the log only.
        first_line = self.reason.partition("\n")[0]
        return UnavailableError(
            f"model '{spec.identifier}' version {spec.version} has had no instance for "
            f"{elapsed_s:.1f} s, and requests wait at most {self._limit_s:g} s for "
            f"one: {first_line}"
        )


class ClosedQueue:
    """Stands for the scheduler of a model that has had no instance for too long.

    It refuses all new requests. The scheduler itself need not look whether it may take a request,
    which would cost time for each.

    Args:
        scheduler: The model's scheduler, which has no requests.
        error: Makes the error of a request.
    """

    def __init__(self, scheduler: Scheduler, error: Callable[[], ServerError]) -> None:
        self._scheduler = scheduler
        self._error = error
        self.add_instance = scheduler.add_instance
        self.retire_instance = scheduler.retire_instance
        self.holds = scheduler.holds
        self.remove_instance = scheduler.remove_instance
        self.remove = scheduler.remove
        self.expire = scheduler.expire
        self.next = scheduler.next
        self.finished = scheduler.finished
        self.next_deadline_ns = scheduler.next_deadline_ns
        self.take_all = scheduler.take_all

    def add(self, inference: Inference, now_ns: int) -> None:
        """Refuse a request."""
        raise self._error()

    def add_all(self, inferences: Sequence[Inference], now_ns: int) -> dict[Inference, ServerError]:
        """Refuse all requests."""
        return {inference: self._error() for inference in inferences}

    def __len__(self) -> int:
        return len(self._scheduler)

    def __repr__(self) -> str:
        return f"<ClosedQueue before {self._scheduler!r}>"
