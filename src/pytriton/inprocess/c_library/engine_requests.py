# SPDX-License-Identifier: Apache-2.0
"""The engine's record of a request that the application has made. No input is copied here twice."""

from __future__ import annotations

import time
from typing import Any

from pytriton.base.dtypes import BYTES
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.inprocess.c_library.servers import version_text
from pytriton.protocol.kserve_json import raw_input
from pytriton.runtime.native_backend.caller_requests import CallerInput, CallerRequest
from pytriton.serving.engine.served_model import ServedModel


class ScatteredBytes:
    """The bytes of an input in several buffers. The engine's thread joins them."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: list[memoryview]) -> None:
        self.parts = parts
        self.size = sum(map(len, parts))

    def __len__(self) -> int:
        return self.size


def engine_request(request: CallerRequest, model: ServedModel) -> InferRequest:
    """Returns the record; raises InvalidArgumentError if a raw input does not fit the model."""
    return InferRequest(
        model_name=request.model_name,
        model_version=version_text(request.version),
        id=request.id,
        inputs=_tensors(request, model),
        outputs=tuple(request.outputs) or None,
        parameters=dict(request.parameters),
        priority=request.priority,
        timeout_us=request.timeout_us,
        correlation_id=request.correlation_id,
        flags=request.flags,
        received_ns=time.monotonic_ns(),
    )


def _tensors(request: CallerRequest, model: ServedModel) -> dict[str, InferTensor]:
    tensors = {}
    for name, given in request.inputs.items():
        if given.dtype is None:
            data = b"".join(given.parts) if len(given.parts) > 1 else _data(given)
            tensor = raw_input(data, model.spec, request.id)
            tensors[tensor.name] = tensor
        else:
            tensors[name] = InferTensor(name, given.dtype, given.shape, _data(given))
    return tensors


def _data(given: CallerInput) -> Any:
    parts = given.parts
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return b""
    # The elements of BYTES are counted before the engine's thread sees them.
    return b"".join(parts) if given.dtype is BYTES else ScatteredBytes(parts)


def is_scattered(request: InferRequest) -> bool:
    """Returns whether an input is to be joined."""
    return any(isinstance(tensor.data, ScatteredBytes) for tensor in request.inputs.values())


def join_inputs(request: InferRequest, model: ServedModel) -> None:
    """Join the bytes of each input, in memory that instances can read if there is some.

    Called on the engine's thread, which is the only one that allocates there.
    """
    for tensor in request.inputs.values():
        if isinstance(tensor.data, ScatteredBytes):
            tensor.data = _joined(tensor.data, model)


def _joined(data: ScatteredBytes, model: ServedModel) -> memoryview | bytes:
    memory = model.body_memory(data.size, 0)
    if memory is None:
        return b"".join(data.parts)
    at = 0
    for part in data.parts:
        memory[at : at + len(part)] = part
        at += len(part)
    return memory[:at]
