# SPDX-License-Identifier: Apache-2.0
"""The generate endpoints, and responses as server-sent events while a model still works."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from pytriton.errors import InternalError, InvalidArgumentError, ServerError
from pytriton.messages import InferResponse
from pytriton.server.api.background import SMALL_BYTES
from pytriton.server.api.status import HTTP_STATUS
from pytriton.server.http.bodies import as_server_error
from pytriton.server.http.infer import EngineExchange, respond_server_error
from pytriton.wire.generate import (
    EVENT_STREAM,
    NOT_ONE_RESPONSE,
    encode_error_event,
    encode_event,
    encode_generate_response,
)
from pytriton.wire.kserve_response import encode_infer_response
from pytriton.wire.large_response import (
    encode_large_generate_response,
    encode_large_infer_response,
)

if TYPE_CHECKING:
    from pytriton.engine.engine import Engine
    from pytriton.engine.model import Model
    from pytriton.messages import InferRequest
    from pytriton.server.http.bodies import Bodies
    from pytriton.server.http.connection import HttpConnection
    from pytriton.server.http.infer import HeaderUse
    from pytriton.server.http.reader import RequestHead
    from pytriton.wire.output_format import OutputFormat

_EVENT_TYPE = EVENT_STREAM.encode()


class GenerateExchange(EngineExchange):
    """A generate request: the model has to answer it exactly once."""

    __slots__ = ("_bodies", "_response")

    def __init__(
        self, engine: Engine, model: Model, connection: HttpConnection, bodies: Bodies
    ) -> None:
        super().__init__(engine, model, connection)
        self._bodies = bodies
        self._response: InferResponse | None = None

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Answer when the model ends, or at once when it says more than one thing."""
        request = self._request
        if request is None:
            return
        if response is not None and self._response is not None:
            self.on_error(InternalError(NOT_ONE_RESPONSE))
            if not final:
                self._engine.cancel(request)
            return
        self._response = response or self._response
        if final:
            self._answer()

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Send the error."""
        if self._request is not None:
            request, self._request = self._request, None
            respond_server_error(self._connection, error)
            if not final:
                self._engine.cancel(request)  # the model may have more to say

    def _answer(self) -> None:
        response = self._response
        if response is None:
            self.on_error(InternalError(NOT_ONE_RESPONSE))
            return
        try:
            if has_large_output(response):
                self._bodies.write_later(
                    partial(encode_large_generate_response, response),
                    partial(self._connection.respond, 200),
                    partial(respond_server_error, self._connection),
                )
                self._request = None
                return
            body = encode_generate_response(response)
        except Exception as error:  # noqa: BLE001  it is logged
            self.on_error(as_server_error(error))
            return
        self._request = None
        self._connection.respond(200, (body,))


def has_large_output(response: InferResponse) -> bool:
    """Whether writing a response as JSON takes long."""
    return any(len(tensor.data) > SMALL_BYTES for tensor in response.outputs)


class EventStream(EngineExchange):
    """Sends responses as events when they come; the first decides on the status.

    A large one is written in a thread. What comes meanwhile is held back, and the model waits.
    """

    __slots__ = ("_bodies", "_has_begun", "_held", "_is_writing")

    def __init__(
        self, engine: Engine, model: Model, connection: HttpConnection, bodies: Bodies
    ) -> None:
        super().__init__(engine, model, connection)
        self._bodies = bodies
        self._has_begun = False
        self._is_writing = False
        self._held: deque[tuple[InferResponse | ServerError | None, bool]] = deque()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Send an event."""
        self._take(response, final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Send an error in place of a response."""
        self._take(error, final)

    def _take(self, item: InferResponse | ServerError | None, final: bool) -> None:
        if self._request is None:
            return
        if final:
            self._request = None  # the engine is done with it
        if self._is_writing:
            self._held.append((item, final))
        else:
            self._pass_on(item, final)

    def _pass_on(self, item: InferResponse | ServerError | None, final: bool) -> None:
        if isinstance(item, InferResponse):
            self._send_response(item, final)
        elif item is not None:
            self._send_error(item)
        if final and not self._is_writing:
            self._end()

    def _send_response(self, response: InferResponse, final: bool) -> None:
        try:
            if has_large_output(response):
                self._is_writing = True
                self.pause()
                self._bodies.write_later(
                    partial(self._write, response),
                    partial(self._on_written, final),
                    partial(self._on_written, final),
                )
                return
            event = self._write(response)
        except Exception as error:  # noqa: BLE001  it is logged
            self._send_error(as_server_error(error))
        else:
            self._send(200, event)

    def _write(self, response: InferResponse) -> bytes:
        """The event of a response."""
        raise NotImplementedError

    def _on_written(self, final: bool, written: bytes | ServerError) -> None:
        self._is_writing = False
        if isinstance(written, ServerError):
            self._send_error(written)
        else:
            self._send(200, written)
        if final:
            self._end()
        while self._held and not self._is_writing:
            self._pass_on(*self._held.popleft())
        if not self._is_writing and not self._connection.is_writing_paused:
            self.resume()

    def _send_error(self, error: ServerError) -> None:
        self._send(HTTP_STATUS[error.code], encode_error_event(error))

    def _send(self, status: int, event: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._connection.begin_stream(status, _EVENT_TYPE)
        self._connection.stream(event)

    def _end(self) -> None:
        self._send(200, b"")  # a stream without any event has a head too
        self._connection.end_stream()


class GenerateEvents(EventStream):
    """Answers a generate_stream request."""

    __slots__ = ()

    def _write(self, response: InferResponse) -> bytes:
        if has_large_output(response):
            return encode_event(b"".join(encode_large_generate_response(response)))
        return encode_event(encode_generate_response(response))


def accepts_events(headers: dict[bytes, bytes]) -> bool:
    """Whether a client asks for server-sent events."""
    choices = headers.get(b"accept", b"").lower().split(b",")
    return any(choice.partition(b";")[0].strip() == b"text/event-stream" for choice in choices)


class InferEvents(EventStream):
    """Answers an infer request with events, each an infer response."""

    __slots__ = ("_format",)

    def submit(
        self, head: RequestHead, request: InferRequest, output_format: OutputFormat, use: HeaderUse
    ) -> None:
        """Hand the request to the engine."""
        if output_format.default.binary or any(it.binary for it in output_format.listed.values()):
            raise InvalidArgumentError(
                "expected outputs as JSON where responses are server-sent events, got a request "
                "for binary data"
            )
        self._format = output_format
        use.apply(head, request, self._model.spec)
        self.start(request)

    def _write(self, response: InferResponse) -> bytes:
        spec = self._model.spec
        is_large = has_large_output(response)
        encode = encode_large_infer_response if is_large else encode_infer_response
        _, parts = encode(
            response, self._format, is_batched=spec.max_batch_size > 0, labels=spec.labels
        )
        return encode_event(b"".join(parts))
