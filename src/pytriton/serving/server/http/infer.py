# SPDX-License-Identifier: Apache-2.0
"""Inference over HTTP: passes requests to the engine, and its responses to the client."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.errors import ServerError
from pytriton.base.messages import RequestPath
from pytriton.protocol.compression import (
    ACCEPT_ENCODING,
    UnknownEncodingError,
    choose_encoding,
    compress,
)
from pytriton.protocol.kserve_response import encode_infer_response, encode_large_infer_response
from pytriton.serving.server.api.background import MEDIUM_BYTES, SMALL_BYTES
from pytriton.serving.server.api.header_forwarding import HeaderForwarding
from pytriton.serving.server.api.status import HTTP_STATUS, retry_header
from pytriton.serving.server.http.connection import body_headers
from pytriton.serving.server.http.handler import HttpExchange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferRequest, InferResponse, TraceOrigin
    from pytriton.protocol.kserve_json import OutputFormat
    from pytriton.protocol.shared_memory import RegionPlace
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.http.bodies import Bodies
    from pytriton.serving.server.http.connection import AnswerWatch, HttpConnection
    from pytriton.serving.server.http.request import RequestHead
    from pytriton.serving.server.shared_memory.region_request import RegionRequest
    from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory

_ACCEPT_ENCODING_HEADER = b"Accept-Encoding: %b\r\n" % ACCEPT_ENCODING.encode()


class HeaderUse:
    """Uses request headers: forwards them as parameters, or leaves them to those who observe."""

    def __init__(self, pattern: str | None) -> None:
        self._forwarding = HeaderForwarding(pattern) if pattern else None

    def forward(self, head: RequestHead, request: InferRequest) -> None:
        """Add headers as parameters; InvalidArgumentError if one must not be forwarded."""
        if self._forwarding is not None:
            self._forwarding.apply(head.header_list, request)

    def fits_columns(self, head: RequestHead) -> bool:
        """Returns whether the headers of a request add nothing to it, unless it is sampled."""
        return self._forwarding is None and b"traceparent" not in head.headers


class EngineService(NamedTuple):
    """Shared state of all exchanges of a port."""

    engine: EngineClient
    headers: HeaderUse | None  # None if no header adds anything to a request
    bodies: Bodies
    shared_memory: ClientSharedMemory


class EngineExchange(HttpExchange):
    """A request that the engine executes; it is the sink for the responses."""

    __slots__ = (
        "_connection", "_inference", "_is_answered", "_model", "_service", "_version"
    )  # fmt: skip

    def __init__(
        self, service: EngineService, model: ServedModel, version: str, connection: HttpConnection
    ) -> None:
        self._service = service
        self._model = model
        self._version = version
        self._connection = connection
        # None until the engine has the request, or its inputs are being read.
        self._inference: Inference | RegionRequest | None = None
        self._is_answered = False

    def start(
        self, head: RequestHead, request: InferRequest, fitting: ServedModel | None = None
    ) -> None:
        """Pass the request to the engine; for `fitting` see `Engine.infer`."""
        service = self._service
        spec = self._model.spec
        if spec.namespace:
            request.model_name = spec.identifier  # the name alone may mean several models
        request.model_version = self._version
        request.received_ns = time.monotonic_ns()
        # Without a way to answer it, a request would not have come here.
        principal = head.resolved.principal  # type: ignore[union-attr]
        if request.fields.principal != principal:
            request.fields = request.fields.with_principal(principal)
        if not request.path:
            request.path = RequestPath.FORM
        if service.headers is not None:
            service.headers.forward(head, request)
        if request.uses_regions:
            memory, infer = service.shared_memory, service.engine.infer
            self._inference = memory.begin(request, self._places(), self, infer)
            return
        self._inference = service.engine.infer(request, self, fitting)

    def origin(self) -> TraceOrigin:
        """Returns where the request came from; see `Members`."""
        return self._connection.origin()

    @property
    def watched(self) -> AnswerWatch | None:
        """What the port notes about the request; see `Members`."""
        return self._connection.watched

    def _places(self) -> dict[str, RegionPlace]:
        """Returns where outputs go that the client wants in shared memory."""
        return {}

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        raise NotImplementedError

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        raise NotImplementedError

    def note_refusal(self, error: ServerError) -> None:
        """Note that the request could not be read, so that the engine never gets it."""
        self._service.engine.report_refusal(self._model.spec.identifier, self._version, "", error)

    def on_refused(self, error: ServerError) -> None:
        self._is_answered = True
        respond_server_error(self._connection, error)

    def abandon(self) -> None:
        """Cancel the request, because the client has disconnected."""
        if self._inference is not None:
            self._inference.cancel()

    def pause(self) -> None:
        """Pause the model, because the client reads responses too slowly."""
        if self._inference is not None:
            self._inference.pause()

    def resume(self) -> None:
        if self._inference is not None:
            self._inference.resume()


class InferExchange(EngineExchange):
    """An infer request for a coupled model."""

    __slots__ = ("_accept_encoding", "_format")

    def submit(self, head: RequestHead, request: InferRequest, output_format: OutputFormat) -> None:
        self.set_format(head.headers.get(b"accept-encoding"), output_format)
        self.start(head, request)

    def set_format(self, accept_encoding: bytes | None, output_format: OutputFormat) -> None:
        """Set the format of the response: the client's header, and what its request says."""
        self._accept_encoding = accept_encoding
        self._format = output_format

    def _places(self) -> dict[str, RegionPlace]:
        """Returns where outputs go that the client wants in shared memory."""
        return self._format.places()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Send the only response of a coupled model."""
        if response is None:
            self._connection.respond_error(500, "expected a single response, got 0")
            return
        for tensor in response.outputs:
            if len(tensor.data) > MEDIUM_BYTES:
                if self._is_deferred(response):
                    return
                break
        parts, content_type, headers = self._write(response, encode_infer_response)
        self._connection.respond(200, parts, content_type, headers)

    def _is_deferred(self, response: InferResponse) -> bool:
        """Respond later if encoding takes long, or takes too long for now; returns whether so."""
        bodies = self._service.bodies
        if self._takes_long(response, SMALL_BYTES):
            write = partial(self._write, response)
            bodies.write_in_thread(write, self._respond, self.on_error)
            return True
        if not self._takes_long(response, MEDIUM_BYTES) or bodies.can_write_now():
            return False
        write = partial(self._write, response, encode_infer_response)
        bodies.write_in_turn(write, self._respond, self.on_error)
        return True

    def _respond(self, answer: tuple[Sequence[Buffer], bytes, bytes]) -> None:
        self._connection.respond(200, *answer)

    def _takes_long(self, response: InferResponse, max_bytes: int) -> bool:
        """Returns whether an output of more bytes has to become JSON, classes or compressed."""
        default, listed = self._format
        encoding = self._encoding()
        for tensor in response.outputs:
            if len(tensor.data) > max_bytes:
                choice = listed.get(tensor.name, default)
                if choice.class_count or not choice.binary or encoding != "identity":
                    return True
        return False

    def _encoding(self) -> str:
        if self._accept_encoding is None:
            return "identity"
        return choose_encoding(self._accept_encoding.decode("latin-1"))

    def _write(
        self,
        response: InferResponse,
        encode: Callable[..., tuple[int | None, list[Buffer]]] = encode_large_infer_response,
    ) -> tuple[Sequence[Buffer], bytes, bytes]:
        """Returns the parts of the body, its content type and further headers."""
        spec = self._model.spec
        header_length, parts = encode(
            response, self._format, is_batched=spec.max_batch_size > 0, labels=spec.labels
        )
        encoding = self._encoding()
        if encoding != "identity":
            parts = [*compress(parts, encoding)]
        return parts, *body_headers(header_length, encoding)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        respond_server_error(self._connection, error)


def respond_server_error(connection: HttpConnection, error: ServerError) -> None:
    headers = _ACCEPT_ENCODING_HEADER if isinstance(error, UnknownEncodingError) else b""
    headers += retry_header(error)
    connection.respond_error(HTTP_STATUS[error.code], error.message, headers)
