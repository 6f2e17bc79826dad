# SPDX-License-Identifier: Apache-2.0
"""The responses of a decoupled model to one request, as they come."""

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

# Responses received ahead of the caller; when they are not fetched, the server has to wait.
_AHEAD = 16
# A response that its model gives just in time is still on its way when the time is up.
_TRAVEL_TIME_S = 0.02
# How soon the thread of a stream that was dropped unread sees that.
_LOOK_AGAIN_S = 0.5

_END = object()

# By identity. Unlike a weak set, it can be listed while other threads change it.
_receivers: weakref.WeakValueDictionary[int, _Receiver] = weakref.WeakValueDictionary()


@atexit.register
def _give_up_all() -> None:
    """End the calls that there are when the program ends, and never destroy them.

    Python then stops gRPC's threads where they stand, maybe with the lock of a call in their hands,
    and the call's destructor would wait for that lock forever.
    """
    for reference in _receivers.valuerefs():
        receiver = reference()
        if receiver is not None:
            receiver.give_up()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(receiver))


class ResponseStream:
    """The messages of one gRPC call; ends the call when it is closed, fails or is dropped.

    Args:
        call: the call, an iterator over messages that can be cancelled.
        timeout_s: time allowed for each response.
        began_s: when the time of the first one began.
    """

    def __init__(self, call: Any, timeout_s: float, began_s: float) -> None:
        self.is_over = False
        self._timeout_s = timeout_s
        self._first_deadline: float | None = began_s + timeout_s  # until somebody reads
        self._failure: PyTritonClientError | None = None
        self._receiver = _Receiver(call)
        weakref.finalize(self, self._receiver.give_up).atexit = False  # `_give_up_all` is in time
        # A daemon, so that a stream nobody finishes does not keep the process from ending. It
        # does not know this object, or that would never be dropped.
        threading.Thread(target=self._receiver.run, name="pytriton-stream", daemon=True).start()

    @property
    def is_unread(self) -> bool:
        """Whether nobody began to read it."""
        return self._first_deadline is not None

    def is_in_use(self) -> bool:
        """Whether it is not over. One that nobody begins to read in time is given up here."""
        if self._first_deadline is not None and time.monotonic() > self._first_deadline:
            self.close(
                PyTritonClientTimeoutError(
                    f"Expected the responses to be read within {self._timeout_s:g} s; they were "
                    "given up for another request"
                )
            )
        return not self.is_over

    def next_response(self) -> Any:
        """The next response; None at the end.

        Raises:
            PyTritonClientTimeoutError: None came in time, or nobody read in time.
            PyTritonClientInferenceServerError: The server answered with an error.
            PyTritonClientClosedError: The client was closed.
        """
        first_deadline, self._first_deadline = self._first_deadline, None
        if not self.is_over:
            response = self._wait_for_response(
                time.monotonic() + self._timeout_s if first_deadline is None else first_deadline
            )
            if not self.is_over:  # meanwhile
                return response
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return None

    def close(self, failure: PyTritonClientError | None = None) -> None:
        """End the request; what the server still sends is dropped.

        Args:
            failure: what who reads on is told; default is that there are no more responses.
        """
        if self.is_over:
            return
        self.is_over, self._failure = True, failure
        self._receiver.give_up()
        self._receiver.wake_reader()

    def drop(self) -> None:
        """Like `close`, when nobody reads. A destructor may call it: it waits for no lock here."""
        self.is_over = True
        self._receiver.give_up()

    def _wait_for_response(self, deadline: float) -> Any:
        """The next response; otherwise the stream is over then."""
        limit_s = max(deadline + _TRAVEL_TIME_S - time.monotonic(), 0)
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
        problem = _problem_of(message)
        if problem:
            self.close(
                PyTritonClientInferenceServerError(
                    f"Error occurred during inference request. Message: {problem}"
                )
            )
            return None
        return message.infer_response


class Responses(Iterator[dict[str, Array]]):
    """What a caller iterates over. Dropping it after the first step, or closing it, is giving up.

    Args:
        stream: the responses.
        read: gives the outputs in a response, by name.
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
        """End the request; what the server still sends is dropped. Any thread may call it."""
        self._stream.close()


class _Receiver:
    """What the thread that receives the messages of a call works on."""

    def __init__(self, call: Any) -> None:
        self.messages: queue.Queue[Any] = queue.Queue(_AHEAD)
        self._call = call
        self._is_given_up = False
        _receivers[id(self)] = self

    def run(self) -> None:
        try:
            for message in self._call:
                self._put(message)
        except Exception as error:  # noqa: BLE001  raised where the responses are read
            self._put(error)
        else:
            self._put(_END)

    def give_up(self) -> None:
        # Garbage collection may call it in any thread, also in the one that has the queue's lock,
        # and Python when it destroys what is left: then `_give_up_all` did this.
        if not self._is_given_up:
            self._is_given_up = True
            self._call.cancel()

    def wake_reader(self) -> None:
        """Let a thread that waits for a message go on; where there is no room, there is one."""
        # Room for the thread that receives, so that it comes to its end.
        with contextlib.suppress(queue.Empty):
            while True:
                self.messages.get_nowait()
        with contextlib.suppress(queue.Full):
            self.messages.put_nowait(_END)

    def _put(self, message: Any) -> None:
        while not self._is_given_up:
            with contextlib.suppress(queue.Full):
                self.messages.put(message, timeout=_LOOK_AGAIN_S)
                return


def _problem_of(message: Any) -> str:
    """What the server has to say instead of a response; empty where it is a response."""
    if isinstance(message, Exception):
        details = getattr(message, "details", None)  # a method of gRPC's errors
        return str(details()) if callable(details) else f"{type(message).__name__}: {message}"
    problem: str = message.error_message
    return problem
