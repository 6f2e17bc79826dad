# SPDX-License-Identifier: Apache-2.0
"""Where a model runs, as the objects that it uses see it: a worker process, or a test's harness."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pytriton.pb_utils.failures import TritonModelException

if TYPE_CHECKING:
    from pytriton.pb_utils.request import InferenceRequest
    from pytriton.pb_utils.response import InferenceResponse


class InferenceCall(Protocol):
    """A request that a model sent to another one."""

    is_over: bool  # the last response was received, so `receive` would give None

    def receive(self) -> InferenceResponse | None:
        """Wait for the next response; None after the last one.

        A decoupled model that ends without a response of its own for that adds an empty one.
        """

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once when `receive` does not wait: now or later, by any thread."""

    def cancel(self) -> None:
        """Give the request up; does nothing once it is over."""

    def abandon(self) -> None:
        """Let the remaining responses come and drop them, without waiting; for finalisers."""


class RequestContext(Protocol):
    """The server's end of a request that `execute` got."""

    def send(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Send a response, the bare end of them, or both; may wait until the client takes more."""

    def is_cancelled(self) -> bool:
        """Whether nobody waits for responses any more."""


class Runtime(Protocol):
    """The surroundings of one instance."""

    instance_name: str
    model_directory: str

    def infer(
        self, request: InferenceRequest, *, decoupled: bool, is_awaited: bool = False
    ) -> InferenceCall:
        """Send a request to another model; TritonModelException outside of `execute`.

        `is_awaited` says that an event loop goes on meanwhile; else this thread waits.
        """

    def call(self, action: str, **arguments: Any) -> Any:
        """Have the server do something and wait; TritonModelException with its text."""

    def notify(self, action: str, **arguments: Any) -> None:
        """Have the server do something of which no answer is needed; finalisers may call it."""

    def log(self, level: str, message: str, file: str, line: int) -> None:
        """Write a line to the server's log; levels are INFO, WARNING, ERROR and VERBOSE."""


_current: Runtime | None = None


def set_runtime(runtime: Runtime | None) -> None:
    """Say where this process's model runs."""
    global _current  # noqa: PLW0603  a process runs one model
    _current = runtime


def current_runtime() -> Runtime | None:
    """Where this process's model runs; None where nothing runs it."""
    return _current


def require_runtime(purpose: str) -> Runtime:
    """Where this process's model runs.

    Raises:
        TritonModelException: nothing runs it.
    """
    if _current is None:
        raise TritonModelException(
            f"There is no server to {purpose}: this process was not started by one. Tests run"
            " models in pytriton.testing.ModelHarness."
        )
    return _current


def ask_server(purpose: str, failure: str, action: str, **arguments: Any) -> Any:
    """Have the server do something and wait; its errors get `failure` in front.

    Raises:
        TritonModelException: the server refused, or there is none.
    """
    runtime = require_runtime(purpose)
    try:
        return runtime.call(action, **arguments)
    except TritonModelException as error:
        raise TritonModelException(_in_triton_words(runtime, failure, str(error))) from error


def refuse(purpose: str, failure: str, reason: str) -> NoReturn:
    """Raise what `ask_server` would, where it is known without asking."""
    raise TritonModelException(_in_triton_words(require_runtime(purpose), failure, reason))


def _in_triton_words(runtime: Runtime, failure: str, reason: str) -> str:
    return (
        f"{failure}: Failed to process the request for model '{runtime.instance_name}', message:"
        f" {reason}"
    )
