# SPDX-License-Identifier: Apache-2.0
"""The generate endpoints, and responses that are streamed as server-sent events."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError
from pytriton.base.messages import InferResponse
from pytriton.base.request_words import stream_route
from pytriton.protocol.generate import (
    EVENT_STREAM,
    NOT_ONE_RESPONSE,
    encode_error_event,
    encode_event,
    encode_generate_response,
)
from pytriton.protocol.kserve_response import (
    encode_infer_response,
    encode_large_generate_response,
    encode_large_infer_response,
)
from pytriton.serving.server.api.background import SMALL_BYTES
from pytriton.serving.server.api.status import HTTP_STATUS, retry_header
from pytriton.serving.server.http.bodies import as_server_error
from pytriton.serving.server.http.infer import EngineExchange, respond_server_error

if TYPE_CHECKING:
    from pytriton.base.messages import InferRequest, ResponseBurst
    from pytriton.protocol.kserve_json import OutputFormat
    from pytriton.protocol.shared_memory import RegionPlace
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.infer import EngineService
    from pytriton.serving.server.http.request import RequestHead

_EVENT_TYPE = EVENT_STREAM.encode()


class GenerateExchange(EngineExchange):
    """A generate request: the model has to return exactly one response."""

    __slots__ = ("_response",)

    def __init__(
        self, service: EngineService, model: ServedModel, version: str, connection: HttpConnection
    ) -> None:
        super().__init__(service, model, version, connection)
        self._response: InferResponse | None = None

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Answer when the model is done, or at once if it returns a second response."""
        if self._is_answered:
            return
        if response is not None and self._response is not None:
            self._fail(self._not_one_response())
            return
        self._response = response or self._response
        if not final:
            return
        if self._response is None:
            self._fail(self._not_one_response())
        else:
            self._answer(self._response)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        if not self._is_answered:
            self._fail(error)

    def _not_one_response(self) -> ServerError:
        spec = self._model.spec
        if not spec.is_annotated:
            return InternalError(NOT_ONE_RESPONSE)
        route = stream_route(spec.name)
        return InvalidArgumentError(f"generate takes exactly one answer, and {route}")

    def _fail(self, error: ServerError) -> None:
        self._is_answered = True
        respond_server_error(self._connection, error)
        if self._inference is not None:
            self._inference.cancel()  # the model may have more responses

    def _answer(self, response: InferResponse) -> None:
        if has_large_output(response):
            self._service.bodies.write_in_thread(
                partial(encode_large_generate_response, response, self._model.spec),
                partial(self._connection.respond, 200),
                partial(respond_server_error, self._connection),
            )
        else:
            body = encode_generate_response(response, self._model.spec)
            self._connection.respond(200, (body,))
        self._is_answered = True


def has_large_output(response: InferResponse) -> bool:
    """Returns whether encoding a response as JSON takes long."""
    return any(len(tensor.data) > SMALL_BYTES for tensor in response.outputs)


class EventStream(EngineExchange):
    """Sends responses as events at once; the first decides on the HTTP status.

    A large response is encoded in a thread. Until that is done, further responses are held and the
    model is paused.
    """

    __slots__ = ("_has_begun", "_held", "_is_writing")

    def __init__(
        self, service: EngineService, model: ServedModel, version: str, connection: HttpConnection
    ) -> None:
        super().__init__(service, model, version, connection)
        self._has_begun = False
        self._is_writing = False
        self._held: deque[tuple[InferResponse | ServerError | None, bool]] = deque()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        self._accept(response, final)

    def on_burst(self, burst: ResponseBurst) -> None:
        """Send many responses, which are small, with one write."""
        if self._is_writing or self._is_answered:
            for response in burst.responses():
                self._accept(response, final=False)
            return
        events: list[bytes] = []
        try:
            for response in burst.responses():
                events.append(self._write(response))  # noqa: PERF401  see below
        finally:  # those before one that cannot be encoded are sent, too
            if events:
                self._send(200, b"".join(events))

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        self._accept(error, final)

    def _accept(self, item: InferResponse | ServerError | None, final: bool) -> None:
        if self._is_answered:
            return
        if self._is_writing:
            self._held.append((item, final))
        else:
            self._send_item(item, final)
        self._is_answered = self._is_answered or final  # the engine has no more responses

    def _send_item(self, item: InferResponse | ServerError | None, final: bool) -> None:
        if isinstance(item, InferResponse):
            self._send_response(item, final)
        elif item is not None:
            self._send_error(item)
        if final and not self._is_writing:
            self._end()

    def _send_response(self, response: InferResponse, final: bool) -> None:
        if has_large_output(response):
            self._is_writing = True
            self.pause()
            self._service.bodies.write_in_thread(
                partial(self._write, response), partial(self._on_written, final), self._abort_stream
            )
        else:
            self._send(200, self._write(response))

    def _write(self, response: InferResponse) -> bytes:
        raise NotImplementedError

    def _on_written(self, final: bool, event: bytes) -> None:
        self._is_writing = False
        self._send(200, event)
        if final:
            self._end()
        try:
            while self._held and not self._is_writing:
                self._send_item(*self._held.popleft())
        except Exception as error:  # noqa: BLE001  it is logged
            self._abort_stream(as_server_error(error))
            return
        if not self._is_writing and not self._connection.is_writing_paused:
            self.resume()

    def _abort_stream(self, error: ServerError) -> None:
        """End the stream because a response cannot be encoded."""
        self._is_answered = True
        self._held.clear()
        self._send_error(error)
        self._end()
        if self._inference is not None:
            self._inference.cancel()  # the model may have more responses

    def _send_error(self, error: ServerError) -> None:
        self._send(HTTP_STATUS[error.code], encode_error_event(error), retry_header(error))

    def _send(self, status: int, event: bytes, headers: bytes = b"") -> None:
        if not self._has_begun:
            self._has_begun = True
            self._connection.begin_stream(status, _EVENT_TYPE, headers)
        self._connection.stream(event)

    def _end(self) -> None:
        self._send(200, b"")  # sends the head of a stream that has no events
        self._connection.end_stream()


class GenerateEvents(EventStream):
    """Answers a generate_stream request."""

    __slots__ = ()

    def _write(self, response: InferResponse) -> bytes:
        spec = self._model.spec
        if has_large_output(response):
            return encode_event(b"".join(encode_large_generate_response(response, spec)))
        return encode_event(encode_generate_response(response, spec))


def accepts_events(headers: dict[bytes, bytes]) -> bool:
    choices = headers.get(b"accept", b"").lower().split(b",")
    return any(choice.partition(b";")[0].strip() == b"text/event-stream" for choice in choices)


class InferEvents(EventStream):
    """Answers an infer request with events, each of which is an infer response."""

    __slots__ = ("_format",)

    def submit(self, head: RequestHead, request: InferRequest, output_format: OutputFormat) -> None:
        if output_format.default.binary or any(it.binary for it in output_format.listed.values()):
            raise InvalidArgumentError(
                "expected outputs as JSON where responses are server-sent events, got a request "
                "for binary data"
            )
        self._format = output_format
        self.start(head, request)

    def _places(self) -> dict[str, RegionPlace]:
        """Returns where outputs go that the client wants in shared memory."""
        return self._format.places()

    def _write(self, response: InferResponse) -> bytes:
        spec = self._model.spec
        is_large = has_large_output(response)
        encode = encode_large_infer_response if is_large else encode_infer_response
        _, parts = encode(
            response, self._format, is_batched=spec.max_batch_size > 0, labels=spec.labels
        )
        return encode_event(b"".join(parts))
