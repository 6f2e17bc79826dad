# SPDX-License-Identifier: Apache-2.0
"""Requests whose tensors are all in GPU memory of their client, and that repeat byte for byte.

Such a request carries no data: a client that has prepared its regions sends the same bytes again
and again, and gets the same bytes as an answer. So what was read, looked up and checked once is
kept, for as long as the model and the regions are the same.
"""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytriton.base.errors import ServerError
from pytriton.base.messages import (
    DeviceBytes,
    DevicePlace,
    DeviceUse,
    InferRequest,
    InferTensor,
    lone_batch_key,
)
from pytriton.protocol.shared_memory import RegionPlace
from pytriton.serving.engine.validation import validate
from pytriton.serving.server.shared_memory.region_request import unwritten_error

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from pytriton.base.messages import InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.shared_memory.regions import RegionTable
    from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory

MAX_KNOWN = 256
MAX_BYTES = 4096  # of a request

_Format = TypeVar("_Format")
_Answer = TypeVar("_Answer")
_Key = TypeVar("_Key", bound="Hashable")


class KnownRequest(Generic[_Format, _Answer]):
    """A request that was checked, how its client wants the answer, and the last such answer."""

    __slots__ = ("_answer", "_kind", "_request", "_tensors", "_written", "epoch", "format", "spec")

    def __init__(
        self, spec: ModelSpec, epoch: int, request: InferRequest, output_format: _Format
    ) -> None:
        assert request.device is not None
        self.spec = spec
        self.epoch = epoch  # of the regions
        self.format = output_format
        self._request = request
        self._tensors = tuple(request.inputs.values())
        self._written = frozenset(request.device.outputs)  # which the instance writes
        self._kind: list[Any] = []  # names, types and shapes of the outputs of `_answer`
        self._answer: _Answer | None = None

    def request(self) -> InferRequest:
        """Returns a request of its own for a client."""
        request = copy.copy(self._request)
        request.inputs = {
            each.name: InferTensor(each.name, each.dtype, each.shape, each.data)
            for each in self._tensors
        }
        request.batch_key = lone_batch_key()
        return request

    def answer_to(
        self, response: InferResponse, encode: Callable[[InferResponse], _Answer]
    ) -> _Answer | None:
        """Returns what the client gets; None if the response has more than outputs in its regions.

        Raises:
            InternalError: The instance has not written an output.
        """
        kind = []
        is_written = not response.parameters
        for tensor in response.outputs:
            name = tensor.name
            if name not in self._written:
                is_written = False
            elif len(tensor.data):
                raise unwritten_error(name)
            kind.append((name, tensor.dtype, tensor.shape))
        if not is_written:
            return None
        if self._answer is None or self._kind != kind:
            self._kind, self._answer = kind, encode(response)
        return self._answer


class KnownRequests(Generic[_Key, _Format, _Answer]):
    """The requests that are known to a port, by their bytes; the oldest are forgotten together."""

    def __init__(self, shared_memory: ClientSharedMemory) -> None:
        self._shared_memory = shared_memory
        self._known: dict[_Key, KnownRequest[_Format, _Answer] | None] = {}  # None: it came once

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: _Key) -> KnownRequest[_Format, _Answer] | None:
        """Returns a request that is known, if its regions are still the same."""
        known = self._known.get(key)
        if known is not None and known.epoch != self._shared_memory.table.epoch:
            del self._known[key]
            return None
        return known

    def learn(
        self,
        key: _Key,
        model: ServedModel,
        request: InferRequest,
        places: Mapping[str, RegionPlace],
        output_format: _Format,
    ) -> None:
        """Learn from a request in the ordinary way, which is not submitted yet.

        `places` are those of its outputs.
        """
        if key not in self._known:  # clients may send any number of others
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = None
            return
        with contextlib.suppress(ServerError):  # whoever serves the request finds it, too
            spec, table = model.spec, self._shared_memory.table
            checked = _checked_request(spec, table, request, places)
            if checked is not None:
                self._known[key] = KnownRequest(spec, table.epoch, checked, output_format)

    def may_repeat(self, model: ServedModel, request: InferRequest) -> bool:
        """Returns whether a request is one that can be known: most regions are of the host."""
        spec = model.spec
        first = next(iter(request.inputs.values())).data if request.inputs else None
        if not isinstance(first, RegionPlace):
            return False
        is_device = self._shared_memory.table.is_device(first.region)
        return is_device and not (request.fields.id or spec.namespace or spec.decoupled)


def _checked_request(
    spec: ModelSpec, table: RegionTable, request: InferRequest, places: Mapping[str, RegionPlace]
) -> InferRequest | None:
    """Returns a request as the engine gets it; None if a tensor is not in GPU memory.

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
    for name, region_place in places.items():
        place = table.find(region_place)
        if not isinstance(place, DevicePlace):
            return None
        outputs[name] = place
    checked = InferRequest(
        request.model_name,
        tensors,
        request.model_version,
        request.fields,
        request.outputs,
        path=request.path,
        device=DeviceUse(inputs, outputs),
    )
    validate(checked, spec)
    return checked
