# SPDX-License-Identifier: Apache-2.0
"""An inference over HTTP: from the body to the engine, from its response to the client."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from pytriton.errors import ServerError, UnsupportedError
from pytriton.server.api.background import SMALL_BYTES
from pytriton.server.api.header_forwarding import HeaderForwarding
from pytriton.server.api.status import HTTP_STATUS
from pytriton.server.http.bodies import as_server_error
from pytriton.server.http.exchange import Exchange
from pytriton.server.http.text import JSON_TYPE
from pytriton.wire.compression import ACCEPT_ENCODING, choose_encoding, compress
from pytriton.wire.kserve_response import encode_infer_response
from pytriton.wire.large_response import encode_large_infer_response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.dtypes import Buffer
    from pytriton.engine.engine import Engine
    from pytriton.engine.model import Model
    from pytriton.engine.model_spec import ModelSpec
    from pytriton.messages import InferRequest, InferResponse
    from pytriton.server.http.bodies import Bodies
    from pytriton.server.http.connection import HttpConnection
    from pytriton.server.http.reader import RequestHead
    from pytriton.server.tracing.tracing import Tracing
    from pytriton.wire.output_format import OutputFormat

_BINARY_TYPE = b"application/octet-stream"
_ACCEPT_ENCODING_HEADER = b"Accept-Encoding: %b\r\n" % ACCEPT_ENCODING.encode()


class HeaderUse:
    """What the headers of a request add to it: parameters, and the span that it is traced under."""

    def __init__(self, pattern: str | None, tracing: Tracing | None) -> None:
        self._forwarding = HeaderForwarding(pattern) if pattern else None
        self._tracing = tracing

    def apply(self, head: RequestHead, request: InferRequest, spec: ModelSpec) -> None:
        """Add it; InvalidArgumentError where a header must not be forwarded."""
        if self._forwarding is not None:
            self._forwarding.apply(head.header_list, request)
        if self._tracing is not None:
            traceparent = head.headers.get(b"traceparent", b"").decode("latin-1")
            tracestate = head.headers.get(b"tracestate", b"").decode("latin-1")
            self._tracing.begin(request, spec, "HTTP", traceparent, tracestate)


class EngineExchange(Exchange):
    """A request on a connection that the engine works on; its sink for the responses."""

    __slots__ = ("_connection", "_engine", "_model", "_request")

    def __init__(self, engine: Engine, model: Model, connection: HttpConnection) -> None:
        self._engine = engine
        self._model = model
        self._connection = connection
        # None before and after. The request refers to this object: a cycle that lasted would keep
        # large bodies until the next garbage collection.
        self._request: InferRequest | None = None

    def start(self, request: InferRequest) -> None:
        """Hand the request to the engine; ServerError where it does not take it."""
        request.received_ns = time.monotonic_ns()
        self._request = request
        try:
            self._engine.infer(request, self._model)
        except ServerError:
            self._request = None
            raise

    def abandon(self) -> None:
        """The client is gone: nobody waits for the response."""
        if self._request is not None:
            self._engine.cancel(self._request)

    def pause(self) -> None:
        """The client is slow: the model has to wait."""
        if self._request is not None:
            self._engine.pause(self._request)

    def resume(self) -> None:
        """The client caught up."""
        if self._request is not None:
            self._engine.resume(self._request)


class InferExchange(EngineExchange):
    """An infer request of a coupled model."""

    __slots__ = ("_accept_encoding", "_bodies", "_format")

    def __init__(
        self, engine: Engine, model: Model, connection: HttpConnection, bodies: Bodies
    ) -> None:
        super().__init__(engine, model, connection)
        self._bodies = bodies

    def submit(
        self, head: RequestHead, request: InferRequest, output_format: OutputFormat, use: HeaderUse
    ) -> None:
        """Hand the request to the engine."""
        self._accept_encoding = head.headers.get(b"accept-encoding")
        self._format = output_format
        use.apply(head, request, self._model.spec)
        self.start(request)

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Send the only response of a coupled model."""
        self._request = None
        if response is None:
            self._connection.respond_error(500, "expected a single response, got 0")
            return
        try:
            for tensor in response.outputs:
                if len(tensor.data) > SMALL_BYTES and self._takes_long(response):
                    self._bodies.write_later(
                        partial(self._write, response),
                        lambda answer: self._connection.respond(200, *answer),
                        self.on_error,
                    )
                    return
            parts, content_type, headers = self._write(response, encode_infer_response)
        except Exception as error:  # noqa: BLE001  it is logged
            self.on_error(as_server_error(error))
            return
        self._connection.respond(200, parts, content_type, headers)

    def _takes_long(self, response: InferResponse) -> bool:
        """Whether something large has to be made text, sorted or compressed."""
        default, listed = self._format
        for tensor in response.outputs:
            choice = listed.get(tensor.name, default)
            if len(tensor.data) > SMALL_BYTES and (choice.class_count or not choice.binary):
                return True
        return self._encoding() != "identity"

    def _encoding(self) -> str:
        if self._accept_encoding is None:
            return "identity"
        return choose_encoding(self._accept_encoding.decode("latin-1"))

    def _write(
        self,
        response: InferResponse,
        encode: Callable[..., tuple[int | None, list[Buffer]]] = encode_large_infer_response,
    ) -> tuple[Sequence[Buffer], bytes, bytes]:
        """The parts of the answer, their type and headers."""
        spec = self._model.spec
        header_length, parts = encode(
            response, self._format, is_batched=spec.max_batch_size > 0, labels=spec.labels
        )
        headers = b""
        if header_length is not None:
            headers = b"Inference-Header-Content-Length: %d\r\n" % header_length
        if self._accept_encoding is not None:
            encoding = self._encoding()
            if encoding != "identity":
                parts = [*compress(parts, encoding)]
                headers += b"Content-Encoding: %b\r\n" % encoding.encode()
        return parts, JSON_TYPE if header_length is None else _BINARY_TYPE, headers

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Send the error."""
        self._request = None
        respond_server_error(self._connection, error)


def respond_server_error(connection: HttpConnection, error: ServerError) -> None:
    """Answer with an error of the engine."""
    is_encoding = isinstance(error, UnsupportedError) and "compression" in error.message
    headers = _ACCEPT_ENCODING_HEADER if is_encoding else b""
    connection.respond_error(HTTP_STATUS[error.code], error.message, headers)
