# SPDX-License-Identifier: Apache-2.0
"""Tensors of requests that are in GPU memory of their client: inputs for models, and outputs.

By default a model gets its inputs in host memory, as in Triton; its configuration may ask for those
that are in GPU memory to stay there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.dtypes import BY_NUMBER, BYTES, array_to_bytes_elements, encode_bytes
from pytriton.runtime.cuda.device_array import write_to_host
from pytriton.runtime.cuda.regions import OpenRegions, PlacedArray
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import DeviceTensor, Tensor
from pytriton.runtime.transport.arena import block_bytes
from pytriton.runtime.transport.frames import DropRegions
from pytriton.runtime.transport.memory import observers
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    from pytriton.base.messages import DevicePlace, DeviceUse
    from pytriton.runtime.transport.arena import Block
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.refs import TensorRef

_PARAMETER = "FORCE_CPU_ONLY_INPUT_TENSORS"


def keeps_inputs_on_device(model_config: str) -> bool:
    """Returns whether a model, whose configuration is this JSON, takes inputs in GPU memory."""
    parameter = json.loads(model_config).get("parameters", {}).get(_PARAMETER, {})
    return bool(parameter.get("string_value") == "no")


def _strings_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.frombuffer(encode_bytes(array_to_bytes_elements(array)), np.uint8)


class DeviceTensors:
    """The GPU memory of clients, as one model uses it."""

    def __init__(
        self,
        *,
        keeps_on_device: bool,
        allocate: Callable[[int], Block | None] = lambda _: None,
        regions: OpenRegions | None = None,
    ) -> None:
        self._keeps_on_device = keeps_on_device
        self._allocate = allocate  # returns shared memory, which may be registered with the driver
        self._regions = OpenRegions() if regions is None else regions

    def inputs(self, received: Received, refs: list[TensorRef], device: DeviceUse) -> list[Tensor]:
        """Returns the inputs of a request.

        Raises:
            ServerError: A region cannot be opened or read.
        """
        for observer in observers:  # as if the tensors had come in shared memory
            observer.on_message()
        return [
            self._input(ref, device.inputs[ref.name])
            if ref.name in device.inputs
            else Tensor.from_array(ref.name, received.array(ref))
            for ref in refs
        ]

    def place(
        self, response: InferenceResponse, names: Collection[str], device: DeviceUse
    ) -> InferenceResponse:
        """Write those outputs to memory of the client that belong there; returns what is left.

        Raises:
            ServerError: There is no room for an output, or a region cannot be opened or written.
        """
        if response.failure is not None or not device.outputs:
            return response
        tensors: list[Tensor] = []
        for tensor in response.tensors:
            place = device.outputs.get(tensor.name())
            if place is not None and tensor.name() in names:
                dtype, _, array = tensor.to_wire()
                data = _strings_of(array) if dtype is BYTES else array
                self._regions.write(place, data, tensor.name())
                tensors.append(DeviceTensor.of_device(tensor.name(), PlacedArray.of(array)))
            else:
                tensors.append(tensor)
        return InferenceResponse.received(tensors, None, response.parameter_values)

    def on_drop(self, received: Received) -> None:
        """Close the regions that a message names."""
        frame = received.frame
        assert isinstance(frame, DropRegions)
        self._regions.drop(frame.numbers)

    def _input(self, ref: TensorRef, place: DevicePlace) -> Tensor:
        array = self._regions.array(place, BY_NUMBER[ref.dtype].numpy, ref.shape)
        if self._keeps_on_device:
            return DeviceTensor.of_device(ref.name, array)
        block = self._allocate(ref.size) if ref.size > INLINE_TENSOR_BYTES else None
        if block is None:
            return Tensor.from_array(ref.name, array.copy())
        memory = block_bytes(block)[: ref.size]
        write_to_host((array,), memory.data)
        return Tensor.from_array(ref.name, memory.view(array.dtype).reshape(array.shape))
