# SPDX-License-Identifier: Apache-2.0
"""Requests whose tensors are all in GPU memory of their client, and that repeat byte for byte.

Such a request carries no data: a client that has prepared its regions sends the same text again
and again, and gets the same text as an answer. So what was read, looked up and checked once is
kept, for as long as the model and the regions are the same.
"""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InternalError, ServerError
from pytriton.base.messages import (
    DeviceBytes,
    DevicePlace,
    DeviceUse,
    InferRequest,
    InferTensor,
    lone_batch_key,
)
from pytriton.protocol.kserve_response import encode_infer_response
from pytriton.protocol.shared_memory import RegionPlace
from pytriton.serving.engine.validation import validate
from pytriton.serving.server.http.infer import InferExchange
from pytriton.serving.server.shared_memory.region_request import check_device_use

if TYPE_CHECKING:
    from pytriton.base.messages import InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.kserve_json import OutputFormat
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.http.columns import BodyLayout
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.handler import HttpExchange
    from pytriton.serving.server.http.infer import EngineService
    from pytriton.serving.server.http.reader import HttpRequest
    from pytriton.serving.server.http.routes import Route
    from pytriton.serving.server.shared_memory.regions import RegionTable

MAX_KNOWN = 256
MAX_BODY_BYTES = 4096
# The model and the version as clients write them, the layout of the body, and the body.
_Key = tuple[str, str, int | None, str, bytes]


class KnownRequest:
    """A request that was checked, and the answer to the last one like it."""

    __slots__ = ("_request", "_tensors", "answer", "epoch", "output_format", "spec", "written")

    def __init__(
        self, spec: ModelSpec, epoch: int, request: InferRequest, output_format: OutputFormat
    ) -> None:
        assert request.device is not None
        self.spec = spec
        self.epoch = epoch  # of the regions
        self.output_format = output_format
        self.written = frozenset(request.device.outputs)  # which the instance writes
        self.answer: tuple[list[Any], bytes] = ([], b"")  # names, types and shapes; and its text
        self._request = request
        self._tensors = tuple(request.inputs.values())

    def request(self) -> InferRequest:
        """Returns a request of its own for a client."""
        request = copy.copy(self._request)
        request.inputs = {
            each.name: InferTensor(each.name, each.dtype, each.shape, each.data)
            for each in self._tensors
        }
        request.parameters = dict(request.parameters)
        request.batch_key = lone_batch_key()
        return request


class RegionExchange(InferExchange):
    """A request that was known. `small_body_layout` says that its connection is kept."""

    __slots__ = ("_known",)

    def begin(self, known: KnownRequest, request: HttpRequest, encoding: str) -> None:
        """Pass the request to the engine."""
        self._known = known
        self.began_ns = request.began_ns
        self.set_format(None if encoding == "identity" else encoding.encode(), known.output_format)
        self.start(request.head, known.request(), self._model)

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        known = self._known
        if response is None:
            super().on_response(response, final=final)
            return
        kind = []
        is_written = not response.parameters and self._accept_encoding is None
        for tensor in response.outputs:
            name = tensor.name
            if name not in known.written:
                is_written = False
            elif len(tensor.data):
                reason = f"output '{name}' was not written to its CUDA shared memory region"
                self.on_error(InternalError(reason))
                return
            kind.append((name, tensor.dtype, tensor.shape))
        if not is_written:
            super().on_response(response, final=final)
            return
        last, text = known.answer
        if last != kind:
            text = b"".join(encode_infer_response(response, known.output_format)[1])
            known.answer = (kind, text)
        self._connection.respond_small(None, text)


class RegionForms:
    """The requests that are known, of all models of a port; the oldest are forgotten together."""

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._known: dict[_Key, KnownRequest | None] = {}  # None: it came once

    def take(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        route: Route,
        layout: BodyLayout,
        principal: str,
    ) -> HttpExchange | None:
        """See `FormTable.take`; `start` finds the principal with the head."""
        key = (route.model, route.version, layout.json_length, layout.encoding, bytes(request.body))
        known = self._known.get(key)
        if known is None:
            return None
        service = self._service
        model = service.engine.lookup(route.model, route.version)
        if model.spec is not known.spec or known.epoch != service.shared_memory.table.epoch:
            del self._known[key]
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
        spec = model.spec
        table = self._service.shared_memory.table
        first = next(iter(request.inputs.values())).data if request.inputs else None
        if not isinstance(first, RegionPlace) or not table.is_device(first.region):
            return None  # most regions are of the host, and what is in them changes
        if len(body) > MAX_BODY_BYTES or request.id or spec.namespace or spec.decoupled:
            return None
        key = (spec.name, request.model_version, layout.json_length, layout.encoding, bytes(body))
        if key not in self._known:  # clients may send any number of others
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = None
            return self
        with contextlib.suppress(ServerError):  # whoever serves the request finds it, too
            self._known[key] = _known_request(spec, table, request, output_format)
        return self


def _known_request(
    spec: ModelSpec, table: RegionTable, request: InferRequest, output_format: OutputFormat
) -> KnownRequest | None:
    """Check a request; returns None if a tensor is not in GPU memory.

    Raises:
        ServerError: It does not fit its model, or a region is unknown or too small.
    """
    inputs, tensors = {}, {}
    for tensor in request.inputs.values():
        place = table.find(tensor.data) if isinstance(tensor.data, RegionPlace) else None
        if not isinstance(place, DevicePlace):
            return None
        inputs[tensor.name] = place
        data = DeviceBytes.of_size(place.size)
        tensors[tensor.name] = InferTensor(tensor.name, tensor.dtype, tensor.shape, data)
    outputs = {}
    for name, region_place in output_format.places().items():
        place = table.find(region_place)
        if not isinstance(place, DevicePlace):
            return None
        outputs[name] = place
    check_device_use(spec, inputs)
    known = InferRequest(
        request.model_name,
        tensors,
        outputs=request.outputs,
        parameters=request.parameters,
        priority=request.priority,
        timeout_us=request.timeout_us,
        correlation_id=request.correlation_id,
        flags=request.flags,
        path=request.path,
        device=DeviceUse(inputs, outputs),
    )
    validate(known, spec)
    return KnownRequest(spec, table.epoch, known, output_format)
