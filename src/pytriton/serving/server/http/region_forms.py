# SPDX-License-Identifier: Apache-2.0
"""Requests over HTTP that repeat, with all tensors in GPU memory; see `known_requests`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InternalError
from pytriton.protocol.kserve_response import encode_infer_response
from pytriton.serving.server.http.infer import InferExchange
from pytriton.serving.server.shared_memory.known_requests import MAX_BYTES, KnownRequests

if TYPE_CHECKING:
    from pytriton.base.messages import InferRequest, InferResponse
    from pytriton.protocol.kserve_json import OutputFormat
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.http.columns import BodyLayout
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.infer import EngineService
    from pytriton.serving.server.http.request import HttpRequest, Resolved
    from pytriton.serving.server.shared_memory.known_requests import KnownRequest

# The model and the version as clients write them, the layout of the body, and the body.
_Key = tuple[str, str, int | None, str, bytes]


class RegionExchange(InferExchange):
    """A request that was known. `small_body_layout` says that its connection is kept."""

    __slots__ = ("_known",)

    def begin(
        self, known: KnownRequest[OutputFormat, bytes], request: HttpRequest, encoding: str
    ) -> None:
        """Pass the request to the engine."""
        self._known = known
        self.set_format(None if encoding == "identity" else encoding.encode(), known.format)
        self.start(request.head, known.request(), self._model)

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        if response is not None and self._accept_encoding is None:
            try:
                text = self._known.answer_to(response, self._encode)
            except InternalError as error:
                self.on_error(error)
                return
            if text is not None:
                self._connection.respond_small(None, text)
                return
        super().on_response(response, final=final)

    def _encode(self, response: InferResponse) -> bytes:
        return b"".join(encode_infer_response(response, self._known.format)[1])


class RegionForms:
    """The requests that are known, of all models of a port."""

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._known: KnownRequests[_Key, OutputFormat, bytes] = KnownRequests(service.shared_memory)

    def take(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        resolved: Resolved,
    ) -> HttpExchange | None:
        """See `FormTable.take`; `start` finds the principal with the head."""
        route, layout = resolved.route, resolved.layout
        key = (route.model, route.version, layout.json_length, layout.encoding, bytes(request.body))
        known = self._known.find(key)
        if known is None:
            return None
        service = self._service
        model = service.engine.lookup(route.model, route.version)
        if model.spec is not known.spec:
            return None
        exchange = RegionExchange(service, model, route.version, connection)
        exchange.begin(known, request, layout.encoding)
        return exchange

    def learn(
        self,
        model: ServedModel,
        request: InferRequest,
        output_format: OutputFormat,
        body: Any,
        layout: BodyLayout,
    ) -> RegionForms | None:
        """Learn from a request in the ordinary way, which is not submitted yet.

        Returns this object if later ones may be served by it.
        """
        if len(body) > MAX_BYTES or not self._known.may_repeat(model, request):
            return None
        name, version = model.spec.name, request.model_version
        key = (name, version, layout.json_length, layout.encoding, bytes(body))
        self._known.learn(key, model, request, output_format.places(), output_format)
        return self
