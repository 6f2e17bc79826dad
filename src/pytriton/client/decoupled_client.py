# SPDX-License-Identifier: Apache-2.0
"""The synchronous client of decoupled models, and the stream of responses to one request."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule
from pytriton.client import official
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.model_client import ModelClient
from pytriton.client.tensors import Array, Parameters

if TYPE_CHECKING:
    from pytriton.client import grpc_service
else:  # as in `protocols`
    grpc_service = LazyModule("pytriton.client.grpc_service")

# Responses that are received before the caller reads them; then the server has to wait.
_MAX_BUFFERED_RESPONSES = 16
# A response that is sent just before the timeout arrives a little later.
_ARRIVAL_GRACE_S = 0.02
# How often the thread of a stream checks whether the stream was deleted unread.
_CHECK_INTERVAL_S = 0.5

_END = object()

# Keys are ids. Unlike a weak set, it can be iterated while other threads change it.
_receivers: weakref.WeakValueDictionary[int, _Receiver] = weakref.WeakValueDictionary()

logger = logging.getLogger(__name__)


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
        client: what asked, whose connection would be closed if it were deleted.
    """

    def __init__(
        self,
        stream: ResponseStream,
        read: Callable[[Any], dict[str, Array]],
        client: DecoupledModelClient,
    ) -> None:
        self._stream = stream
        self._read = read
        self._client = client

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


class DecoupledModelClient(ModelClient):
    """Like `ModelClient`, but for decoupled models: an inference is an iterator over responses.

    It supports only gRPC, one inference at a time, and neither parameters nor headers.
    `inference_timeout_s` is the timeout of each response. If an iterator fails, is closed or is
    deleted, its request ends, and the client can be used again. An iterator that is not read at all
    is closed after that timeout.

    Examples:
        >>> with DecoupledModelClient("grpc://localhost", "Chat") as client:
        ...     for response in client.infer_sample(prompt):
        ...         print(response["text"])

    Raises:
        PyTritonClientValueError: The address is not a gRPC address.
    """

    _wants_decoupled_model = True
    _schemes = ("grpc",)
    _stream: ResponseStream | None = None

    def close(self) -> None:
        """Like `ModelClient.close`; an open stream is cancelled with a warning."""
        stream = self._stream
        if not self._closed and stream is not None and not stream.is_over:
            logger.warning("%r is closed while a stream is open: cancelling the stream", self)
            stream.close(PyTritonClientClosedError(f"{type(self).__name__} is closed"))
        super().close()

    def infer_sample(  # type: ignore[override]  # the public class derives from ModelClient
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> Iterator[dict[str, Array]]:
        """Like `ModelClient.infer_sample`, but with any number of responses.

        Args:
            *inputs: inputs in the model's order.
            parameters: has to be None.
            headers: has to be None.
            **named_inputs: inputs by name instead.

        Returns:
            An iterator over responses, each with the outputs by name.

        Raises:
            PyTritonClientInferenceServerError: The model is not decoupled, or the previous iterator
                was neither read to its end nor closed. From the iterator: the server answered with
                an error.
            PyTritonClientTimeoutError: From the iterator: no response arrived in time.
        """
        return self._infer(inputs, named_inputs, parameters, headers, is_batch=False)

    def infer_batch(  # type: ignore[override]  # as above
        self,
        *inputs: Array,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
        **named_inputs: Array,
    ) -> Iterator[dict[str, Array]]:
        """Like `infer_sample`, but each input and output has a leading batch dimension.

        Args:
            *inputs: inputs in the model's order.
            parameters: has to be None.
            headers: has to be None.
            **named_inputs: inputs by name instead.

        Returns:
            An iterator over responses, each with the outputs by name.

        Raises:
            PyTritonClientModelDoesntSupportBatchingError: The model has no batch dimension.
        """
        return self._infer(inputs, named_inputs, parameters, headers, is_batch=True)

    def _infer(  # type: ignore[override]  # as above
        self,
        inputs: tuple[Array, ...],
        named_inputs: Mapping[str, Array],
        parameters: Parameters | None,
        headers: Parameters | None,
        *,
        is_batch: bool,
    ) -> Iterator[dict[str, Array]]:
        self._check_arguments(inputs, named_inputs, parameters, headers)
        for kind, values in (("parameters", parameters), ("headers", headers)):
            if values is not None:
                raise PyTritonClientValueError(
                    f"{type(self).__name__} does not support {kind}: expected None, got {values!r}"
                )
        config = self._ready_model_config()
        began_s = time.monotonic()
        given, finish = self._prepare(config, inputs, named_inputs, is_batch=is_batch)
        message = grpc_service.message_of(self._request(config, given, None))
        return DecoupledResponses(
            self._start(message, began_s),
            lambda response: finish(grpc_service.arrays_in(response)),
            self,
        )

    def _start(self, message: Any, began_s: float) -> ResponseStream:
        with self._init_lock, self._converting_close_errors():
            if self._stream is not None and self._stream.is_in_use():
                raise PyTritonClientInferenceServerError(
                    "Inference is already in progress: read all its responses, or close it, first"
                )
            client, headers = self._infer_client, self._auth_headers
            if official.is_client(client):
                call = official.stream(client, message, headers)
            else:
                call = client.stream(message, headers)
            self._stream = ResponseStream(call, self._inference_timeout_s, began_s)
            return self._stream
