# SPDX-License-Identifier: Apache-2.0
"""The services of the server that a worker process may call, as its instance sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytriton.base.messages import InferTensor, ResponseSink
    from pytriton.runtime.transport.frames import InferCall, LogLine


class RunningCall(Protocol):
    """An inference that a worker waits for."""

    def cancel(self) -> None:
        """Cancel it: the worker does not wait for it any more."""

    def pause(self) -> None:
        """Hold responses back: the worker consumes them slower than they arrive."""

    def resume(self) -> None:
        """Continue after `pause`."""


class WorkerServices(Protocol):
    """The services that models call. Each worker has its own object, so the caller is known."""

    def infer(
        self, call: InferCall, inputs: dict[str, InferTensor], sink: ResponseSink
    ) -> RunningCall:
        """Start an inference; the sink gets all results, possibly before this returns."""

    def serve(
        self,
        action: str,
        arguments: dict[str, Any],
        reply: Callable[[Any, str | None], None] | None,
    ) -> None:
        """Run an action; `reply` gets its value, or None and an error text, now or later."""

    def log(self, line: LogLine) -> None:
        """Write a line to the server's log."""

    def close(self) -> None:
        """Release everything that the worker had, because it has ended."""
