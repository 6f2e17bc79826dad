# SPDX-License-Identifier: Apache-2.0
"""What a worker process may ask of the server, as its instance sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytriton.errors import ServerError
    from pytriton.messages import InferResponse, InferTensor
    from pytriton.transport.worker_frames import InferCall, LogLine


class CallSink(Protocol):
    """Where the responses of a call go, always on the event loop."""

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Take a response; None with `final` is the bare end."""

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Take an error; only that of a decoupled model may not be the end of the call."""


class RunningCall(Protocol):
    """An inference that a worker waits for."""

    def cancel(self) -> None:
        """The worker gave it up."""

    def pause(self) -> None:
        """The worker takes responses slower than they come."""

    def resume(self) -> None:
        """It takes them again."""


class WorkerServices(Protocol):
    """The server's side of what models call. One for each worker: it knows who asks."""

    def infer(self, call: InferCall, inputs: dict[str, InferTensor], sink: CallSink) -> RunningCall:
        """Start an inference; ServerError where it cannot be taken, and the sink hears nothing."""

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
