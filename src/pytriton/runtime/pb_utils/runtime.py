# SPDX-License-Identifier: Apache-2.0
"""The interface to the environment of a model: a worker process, or the harness of a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pytriton.runtime.pb_utils.failures import TritonModelException

if TYPE_CHECKING:
    from pytriton.runtime.pb_utils.request import InferenceRequest
    from pytriton.runtime.pb_utils.response import InferenceResponse


class InferenceCall(Protocol):
    """A call of one model by another."""

    is_over: bool  # the last response was received, so `receive` would return None

    def receive(self) -> InferenceResponse | None:
        """Wait for the next response; returns None after the last one.

        If a decoupled model ends with only the final flag, that counts as an empty response.
        """

    def notify(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, now or later and from any thread, when `receive` would not wait."""

    def cancel(self) -> None:
        """Cancel the request; does nothing after its end."""

    def abandon(self) -> None:
        """Receive and drop the remaining responses without waiting; for finalisers."""


class RequestContext(Protocol):
    """The connection of a request that `execute` got to the server."""

    def send(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Send a response, the end, or both; may wait until the client has taken earlier ones."""

    def is_cancelled(self) -> bool:
        """Returns whether the request was cancelled."""


class RequestBatch(Protocol):
    """The batch of a request that `execute` got."""

    @property
    def is_decoupled(self) -> bool:
        """Whether its model sends any number of responses to a request."""

    def context(self, position: int) -> RequestContext:
        """Returns the connection of the request at a position of the batch."""


class Runtime(Protocol):
    """The environment of one instance."""

    instance_name: str
    model_directory: str
    backend_config: Mapping[str, str]

    def infer(
        self, request: InferenceRequest, *, decoupled: bool, is_awaited: bool = False
    ) -> InferenceCall:
        """Send a request to another model; raises TritonModelException outside of `execute`.

        `is_awaited` means that an event loop awaits the response; otherwise this thread blocks.
        """

    def call(self, action: str, **arguments: Any) -> Any:
        """Call a service of the server and wait; raises TritonModelException with its error."""

    def notify(self, action: str, **arguments: Any) -> None:
        """Call a service of the server without a reply; finalisers may call this."""

    def log(self, level: str, message: str, file: str, line: int) -> None:
        """Write a line to the server's log; levels are INFO, WARNING, ERROR and VERBOSE."""


_current: Runtime | None = None


def set_runtime(runtime: Runtime | None) -> None:
    """Set the runtime of this process's model."""
    global _current  # noqa: PLW0603  a process runs one model
    _current = runtime


def current_runtime() -> Runtime | None:
    """Returns the runtime of this process's model; None if there is none."""
    return _current


def require_runtime(purpose: str) -> Runtime:
    """Returns the runtime of this process's model.

    Raises:
        TritonModelException: There is none.
    """
    if _current is None:
        raise TritonModelException(
            f"There is no server to {purpose}: this process was not started by one. Tests run"
            " models in pytriton.testing.ModelHarness."
        )
    return _current


def call_service(purpose: str, failure: str, action: str, **arguments: Any) -> Any:
    """Call a service of the server and wait; prefixes its errors with `failure`.

    Raises:
        TritonModelException: The server returned an error, or there is no server.
    """
    runtime = require_runtime(purpose)
    try:
        return runtime.call(action, **arguments)
    except TritonModelException as error:
        raise TritonModelException(_triton_message(runtime, failure, str(error))) from error


def raise_failure(purpose: str, failure: str, reason: str) -> NoReturn:
    """Raise the error that `call_service` would raise, if it is known without a call."""
    raise TritonModelException(_triton_message(require_runtime(purpose), failure, reason))


def _triton_message(runtime: Runtime, failure: str, reason: str) -> str:
    return (
        f"{failure}: Failed to process the request for model '{runtime.instance_name}', message:"
        f" {reason}"
    )
