# SPDX-License-Identifier: Apache-2.0
"""What a worker process may ask of the server, as its instance sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytriton.messages import InferTensor, ResponseSink
    from pytriton.transport.worker_frames import InferCall, LogLine


class RunningCall(Protocol):
    """An inference that a worker waits for."""

    def cancel(self) -> None:
        """Give it up: the worker does not wait for it any more."""

    def pause(self) -> None:
        """The worker takes responses slower than they come."""

    def resume(self) -> None:
        """It takes them again."""


class WorkerServices(Protocol):
    """The server's side of what models call. One for each worker: it knows who asks."""

    def infer(
        self, call: InferCall, inputs: dict[str, InferTensor], sink: ResponseSink
    ) -> RunningCall:
        """Start an inference; the sink hears what becomes of it, maybe before this returns."""

    def serve(
        self,
        action: str,
        arguments: dict[str, Any],
        reply: Callable[[Any, str | None], None] | None,
    ) -> None:
        """Do something; `reply` gets the value, or None and the error's text, now or later."""

    def log(self, line: LogLine) -> None:
        """Write a line to the server's log."""

    def close(self) -> None:
        """The worker is gone: what it had is released."""
