# SPDX-License-Identifier: Apache-2.0
"""The responses of a decoupled model to one request, as they come."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from pytriton.client.exceptions import (
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)
from pytriton.client.tensors import Array

# Responses received ahead of the caller; when they are not fetched, the server has to wait.
_AHEAD = 16

_END = object()


class ResponseStream(Iterator[dict[str, Array]]):
    """Iterates over responses; ends the request when it is closed, fails or is dropped.

    Args:
        call: the gRPC call, an iterator over messages that can be cancelled.
        read: gives the outputs in a message.
        timeout_s: time allowed for each response.
    """

    def __init__(
        self, call: Any, read: Callable[[Any], dict[str, Array]], timeout_s: float
    ) -> None:
        self.is_over = False
        self._read = read
        self._timeout_s = timeout_s
        self._messages: queue.Queue[Any] = queue.Queue(_AHEAD)
        self._failure: PyTritonClientError | None = None
        # Also when this object is dropped, and when the program ends before it does.
        self._give_up = weakref.finalize(self, _give_up, call, self._messages)
        # A daemon, so that a stream nobody finishes does not keep the process from ending. It
        # does not know this object, or that would never be dropped.
        threading.Thread(
            target=_receive, args=(call, self._messages), name="pytriton-stream", daemon=True
        ).start()

    def __next__(self) -> dict[str, Array]:
        if self.is_over:
            self._raise_end()
        try:
            message = self._messages.get(timeout=self._timeout_s)
        except queue.Empty:
            self.close()
            raise PyTritonClientTimeoutError(
                f"Expected a response or the stream's end within {self._timeout_s:g} s, got none"
            ) from None
        if self.is_over or message is _END:
            self.close()
            self._raise_end()
        problem = _problem_of(message)
        if problem:
            self.close()
            raise PyTritonClientInferenceServerError(
                f"Error occurred during inference request. Message: {problem}"
            )
        return self._read(message.infer_response)

    def close(self, failure: PyTritonClientError | None = None) -> None:
        """End the request; what the server still sends is dropped.

        Args:
            failure: what the next step of the iteration raises; default is its end.
        """
        if self.is_over:
            return
        self.is_over, self._failure = True, failure
        self._give_up()

    def _raise_end(self) -> NoReturn:
        failure, self._failure = self._failure, None
        raise failure or StopIteration


def _receive(call: Any, messages: queue.Queue[Any]) -> None:
    try:
        for message in call:
            messages.put(message)
    except Exception as error:  # noqa: BLE001  raised where the responses are read
        messages.put(error)
    else:
        messages.put(_END)


def _give_up(call: Any, messages: queue.Queue[Any]) -> None:
    call.cancel()
    # Room for the thread that receives, so that it comes to its end.
    with contextlib.suppress(queue.Empty):
        while True:
            messages.get_nowait()
    # For a thread that waits in __next__; where there is no room it has something to get.
    with contextlib.suppress(queue.Full):
        messages.put_nowait(_END)


def _problem_of(message: Any) -> str:
    """What the server has to say instead of a response; empty where it is a response."""
    if isinstance(message, Exception):
        details = getattr(message, "details", None)  # a method of gRPC's errors
        return str(details()) if callable(details) else f"{type(message).__name__}: {message}"
    problem: str = message.error_message
    return problem
