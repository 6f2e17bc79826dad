# SPDX-License-Identifier: Apache-2.0
"""The responses of a decoupled model to one request, in the order of their arrival."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from pytriton.client.exceptions import (
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)
from pytriton.client.tensors import Array

# Responses that are received before the caller reads them; then the server has to wait.
_MAX_BUFFERED_RESPONSES = 16
# A response that is sent just before the timeout arrives a little later.
_ARRIVAL_GRACE_S = 0.02
# How often the thread of a stream checks whether the stream was deleted unread.
_CHECK_INTERVAL_S = 0.5

_END = object()

# Keys are ids. Unlike a weak set, it can be iterated while other threads change it.
_receivers: weakref.WeakValueDictionary[int, _Receiver] = weakref.WeakValueDictionary()


@atexit.register
def _cancel_all() -> None:
    """Cancels all open calls at exit, and keeps Python from destroying them.

    At exit, Python stops gRPC's threads at any point, possibly while they hold the lock of a call.
    The destructor of that call would wait for the lock forever.
    """
    for reference in _receivers.valuerefs():
        receiver = reference()
        if receiver is not None:
            receiver.cancel()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(receiver))


class ResponseStream:
    """The messages of one gRPC call; cancels the call when it is closed, fails or is deleted.

    Args:
        call: the call, an iterator over messages that can be cancelled.
        timeout_s: timeout of each response.
        began_s: time at which the timeout of the first response starts.
    """

    def __init__(self, call: Any, timeout_s: float, began_s: float) -> None:
        self.is_over: bool = False
        self._timeout_s = timeout_s
        self._first_deadline: float | None = began_s + timeout_s  # None after the first read
        self._failure: PyTritonClientError | None = None
        self._receiver = _Receiver(call)
        weakref.finalize(self, self._receiver.cancel).atexit = False  # `_cancel_all` runs at exit
        # A daemon, so that an unfinished stream does not keep the process from ending. It has no
        # reference to this object, which otherwise would never be deleted.
        threading.Thread(target=self._receiver.run, name="pytriton-stream", daemon=True).start()

    @property
    def is_unread(self) -> bool:
        """Whether no response has been read yet."""
        return self._first_deadline is not None

    def is_in_use(self) -> bool:
        """Whether the stream is open. Closes a stream that was not read before the timeout."""
        if self._first_deadline is not None and time.monotonic() > self._first_deadline:
            self.close(
                PyTritonClientTimeoutError(
                    f"Expected the responses to be read within {self._timeout_s:g} s; the stream "
                    "was closed for another request"
                )
            )
        return not self.is_over

    def next_response(self) -> Any:
        """Returns the next response, or None at the end.

        Raises:
            PyTritonClientTimeoutError: No response arrived, or none was read, before the timeout.
            PyTritonClientInferenceServerError: The server answered with an error.
            PyTritonClientClosedError: The client was closed.
        """
        first_deadline, self._first_deadline = self._first_deadline, None
        if not self.is_over:
            response = self._wait_for_response(
                time.monotonic() + self._timeout_s if first_deadline is None else first_deadline
            )
            if not self.is_over:  # another thread may have closed it
                return response
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return None

    def close(self, failure: PyTritonClientError | None = None) -> None:
        """Cancels the request; further responses of the server are discarded.

        Args:
            failure: error for the next read; by default the iteration just ends.
        """
        if self.is_over:
            return
        self.is_over, self._failure = True, failure
        self._receiver.cancel()
        self._receiver.wake_reader()

    def drop(self) -> None:
        """Like `close`, if there is no reader. Safe in destructors, because it takes no lock."""
        self.is_over = True
        self._receiver.cancel()

    def _wait_for_response(self, deadline: float) -> Any:
        """Returns the next response, or None after closing the stream."""
        limit_s = max(deadline + _ARRIVAL_GRACE_S - time.monotonic(), 0)
        try:
            message = self._receiver.messages.get(timeout=limit_s)
        except queue.Empty:
            self.close(
                PyTritonClientTimeoutError(
                    "Timeout occurred during inference request. Timeout: "
                    f"{self._timeout_s:g} s. Message: no response came, nor the end of the stream"
                )
            )
            return None
        if message is _END:
            self.close()
            return None
        problem = _error_text(message)
        if problem:
            self.close(
                PyTritonClientInferenceServerError(
                    f"Error occurred during inference request. Message: {problem}"
                )
            )
            return None
        return message.infer_response


class DecoupledResponses(Iterator[dict[str, Array]]):
    """The iterator for the caller. Closing it, or deleting it after the first read, cancels.

    Args:
        stream: the responses.
        read: returns the outputs of a response by name.
    """

    def __init__(self, stream: ResponseStream, read: Callable[[Any], dict[str, Array]]) -> None:
        self._stream = stream
        self._read = read

    def __next__(self) -> dict[str, Array]:
        response = self._stream.next_response()
        if response is None:
            raise StopIteration
        return self._read(response)

    def __del__(self) -> None:
        if not self._stream.is_unread:
            self._stream.drop()

    def close(self) -> None:
        """Cancel the request; further responses are discarded. Any thread may call it."""
        self._stream.close()


class _Receiver:
    """The state of the thread that receives the messages of a call."""

    def __init__(self, call: Any) -> None:
        self.messages: queue.Queue[Any] = queue.Queue(_MAX_BUFFERED_RESPONSES)
        self._call = call
        self._is_cancelled = False
        _receivers[id(self)] = self

    def run(self) -> None:
        try:
            for message in self._call:
                self._put(message)
        except Exception as error:  # noqa: BLE001  raised to the reader of the responses
            self._put(error)
        else:
            self._put(_END)

    def cancel(self) -> None:
        # Garbage collection may call this in any thread, even in one that holds the queue's lock,
        # and so may Python at exit, after `_cancel_all`.
        if not self._is_cancelled:
            self._is_cancelled = True
            self._call.cancel()

    def wake_reader(self) -> None:
        """Wakes a thread that waits for a message."""
        # Empty the queue, so that the receiving thread can put its last message and end.
        with contextlib.suppress(queue.Empty):
            while True:
                self.messages.get_nowait()
        with contextlib.suppress(queue.Full):
            self.messages.put_nowait(_END)

    def _put(self, message: Any) -> None:
        while not self._is_cancelled:
            with contextlib.suppress(queue.Full):
                self.messages.put(message, timeout=_CHECK_INTERVAL_S)
                return


def _error_text(message: Any) -> str:
    """Returns the error text of a message, or an empty text if it is a response."""
    if isinstance(message, Exception):
        details = getattr(message, "details", None)  # a method of gRPC's errors
        return str(details()) if callable(details) else f"{type(message).__name__}: {message}"
    problem: str = message.error_message
    return problem
