# SPDX-License-Identifier: Apache-2.0
"""The generate endpoints, and responses as server-sent events while a model still works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.errors import InternalError, InvalidArgumentError, ServerError
from pytriton.server.api.status import HTTP_STATUS
from pytriton.server.http.infer import (
    EngineExchange,
    as_server_error,
    read_infer,
    respond_server_error,
)
from pytriton.wire.generate import (
    EVENT_STREAM,
    NOT_ONE_RESPONSE,
    encode_error_event,
    encode_event,
    encode_generate_response,
    parse_generate,
)
from pytriton.wire.kserve_response import encode_infer_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.engine.engine import Engine
    from pytriton.engine.model import Model
    from pytriton.engine.model_spec import ModelSpec
    from pytriton.messages import InferRequest, InferResponse, ResponseSink
    from pytriton.server.http.connection import HttpConnection
    from pytriton.server.http.infer import HeaderUse
    from pytriton.server.http.reader import HttpRequest

_EVENT_TYPE = EVENT_STREAM.encode()


def read_generate(
    http: HttpRequest, spec: ModelSpec, sink: ResponseSink, headers: HeaderUse
) -> InferRequest:
    """The request in the body of a generate call; ServerError says what is wrong."""
    if http.head.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise InvalidArgumentError("Unsupported content-encoding, only 'identity' is supported.")
    request = parse_generate(http.body, spec, sink)
    headers.apply(http.head, request, spec)
    return request


class GenerateExchange(EngineExchange):
    """A generate request: the model has to answer it exactly once."""

    __slots__ = ("_response",)

    def __init__(self, engine: Engine, model: Model, connection: HttpConnection) -> None:
        super().__init__(engine, model, connection)
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
        if self._response is None:
            self.on_error(InternalError(NOT_ONE_RESPONSE))
            return
        try:
            body = encode_generate_response(self._response)
        except Exception as error:  # noqa: BLE001  it is logged
            self.on_error(as_server_error(error))
            return
        self._request = None
        self._connection.respond(200, (body,))


class EventStream(EngineExchange):
    """Sends responses as events when they come; the first decides on the status."""

    __slots__ = ("_encode", "_has_begun")

    def __init__(
        self,
        engine: Engine,
        model: Model,
        connection: HttpConnection,
        encode: Callable[[InferResponse], bytes],
    ) -> None:
        super().__init__(engine, model, connection)
        self._encode = encode
        self._has_begun = False

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Send an event."""
        if self._request is None:
            return
        if response is not None:
            try:
                self._send(200, encode_event(self._encode(response)))
            except Exception as error:  # noqa: BLE001  it is logged
                self._send_error(as_server_error(error))
        if final:
            self._end()

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Send an error in place of a response."""
        if self._request is None:
            return
        self._send_error(error)
        if final:
            self._end()

    def _send_error(self, error: ServerError) -> None:
        self._send(HTTP_STATUS[error.code], encode_error_event(error))

    def _send(self, status: int, event: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._connection.begin_stream(status, _EVENT_TYPE)
        self._connection.stream(event)

    def _end(self) -> None:
        self._send(200, b"")  # a stream without any event has a head too
        self._request = None
        self._connection.end_stream()


def generate_events(engine: Engine, model: Model, connection: HttpConnection) -> EventStream:
    """What answers a generate_stream request."""
    return EventStream(engine, model, connection, encode_generate_response)


def accepts_events(headers: dict[bytes, bytes]) -> bool:
    """Whether a client asks for server-sent events."""
    choices = headers.get(b"accept", b"").lower().split(b",")
    return any(choice.partition(b";")[0].strip() == b"text/event-stream" for choice in choices)


def infer_events(
    engine: Engine, model: Model, connection: HttpConnection, http: HttpRequest, max_bytes: int
) -> tuple[EventStream, InferRequest]:
    """What answers an infer request with events, each an infer response, and that request."""

    def encode(response: InferResponse) -> bytes:
        _, parts = encode_infer_response(
            response,
            output_format,
            is_batched=model.spec.max_batch_size > 0,
            labels=model.spec.labels,
        )
        return b"".join(parts)

    events = EventStream(engine, model, connection, encode)
    request, output_format = read_infer(http, max_bytes, model.spec, events)
    if output_format.default.binary or any(it.binary for it in output_format.listed.values()):
        raise InvalidArgumentError(
            "expected outputs as JSON where responses are server-sent events, got a request for "
            "binary data"
        )
    return events, request
