# SPDX-License-Identifier: Apache-2.0
"""Tensors of requests in GPU memory of other processes, and tensors for others in that of this one.

By default a model gets its inputs in host memory, as in Triton; its configuration may ask for those
that are in GPU memory to stay there. Outputs, and inputs of calls, stay there if whoever gets them
takes them so, and if they can be shared; otherwise they are copied, and the reason is counted.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.device_copies import CopyReason
from pytriton.base.dtypes import BY_NUMBER, BYTES, array_to_bytes_elements, encode_bytes
from pytriton.base.errors import InternalError, ServerError
from pytriton.base.messages import DeviceExport
from pytriton.runtime.backend.mailbox import Waiter
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.device_array import (
    DeviceArray,
    Order,
    copy_to_device,
    wait_for_device,
    write_to_host,
)
from pytriton.runtime.cuda.driver import CudaError
from pytriton.runtime.cuda.exports import Exports, NotShareableError
from pytriton.runtime.cuda.regions import OpenRegions, PlacedArray
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import DeviceTensor, Tensor
from pytriton.runtime.transport.arena import block_bytes
from pytriton.runtime.transport.frames import DeviceNotes, DropRegions, ReleaseExports
from pytriton.runtime.transport.memory import observers
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from pytriton.base.messages import DevicePlace, DeviceUse, DeviceWish
    from pytriton.runtime.cuda.regions import Lease
    from pytriton.runtime.pb_utils.memory import PreferredMemory
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


class SharedArray(PlacedArray):
    """An output that stays in memory of this process: the server gets no bytes, but its place."""

    __slots__ = ("export",)

    export: DeviceExport

    @classmethod
    def exported(cls, array: DeviceArray, export: DeviceExport, lease: Lease | None) -> SharedArray:
        """Returns what is sent in place of an array; it keeps the lease that the export names."""
        self = cls(0, 0, array.dtype, array.shape, lease)
        self.export = export
        return self


class _Ends(Waiter):
    """What a message has ended: it is let go only when the mailbox is not locked any more.

    The driver may wait for the GPU meanwhile, and a library of the user runs code of its own.
    """

    __slots__ = ("_ended",)

    def __init__(self, ended: list[Any]) -> None:
        self._ended = ended

    def on_delivered(self) -> None:
        self._ended.clear()


class DeviceTensors:
    """The GPU memory of clients and of other instances, as one model uses it.

    `post` sends a frame to the server, from any thread and from finalizers.
    """

    def __init__(
        self,
        *,
        keeps_on_device: bool,
        allocate: Callable[[int], Block | None] = lambda _: None,
        regions: OpenRegions | None = None,
        exports: Exports | None = None,
        post: Callable[[DeviceNotes], None] = lambda _: None,
        on_first_use: Callable[[], None] | None = None,
    ) -> None:
        self.keeps_on_device = keeps_on_device
        self._allocate = allocate  # returns shared memory, which may be registered with the driver
        self._post = post
        self._process = os.getpid()
        self._regions = OpenRegions(end_lease=self._end_lease) if regions is None else regions
        self._exports = Exports(on_gone=self._tell_gone) if exports is None else exports
        self._on_first_use = on_first_use

    # What comes

    def column(
        self, ref: TensorRef, uses: Mapping[int, DeviceUse], rows: Sequence[int]
    ) -> list[Tensor]:
        """Returns an input that is in GPU memory, for each request of a batch.

        Raises:
            ServerError: A region cannot be opened or read.
        """
        if self._on_first_use is not None:
            on_first_use, self._on_first_use = self._on_first_use, None
            on_first_use()
        for observer in observers:  # as if the tensors had come in shared memory
            observer.on_message()
        count = len(rows)
        shapes = ref.shapes
        if not shapes:
            tail = ref.shape[1:]
            shapes = [ref.shape] if count == 1 else [(each, *tail) for each in rows]
        return [
            self._input(ref, shapes[position], uses[position].inputs[ref.name])
            for position in range(count)
        ]

    def end_unopened(self, places: Iterable[DevicePlace]) -> None:
        """Give back what was lent and will not be used; before a model sees any of it."""
        for place in places:
            if place.lease and not self._regions.has_lease(place.lease):
                self._end_lease(place.lease)

    def end_unopened_inputs(self, uses: Mapping[int, DeviceUse]) -> None:
        """The same for the inputs of a batch."""
        for use in uses.values():
            self.end_unopened(use.inputs.values())

    def output(self, ref: TensorRef, place: DevicePlace) -> Tensor:
        """Returns an output of a called model that is in GPU memory.

        Raises:
            ServerError: It cannot be opened.
        """
        return DeviceTensor.of_device(ref.name, self._array(place, ref.dtype, ref.shape))

    def moved(self, response: InferenceResponse, preferred: PreferredMemory) -> InferenceResponse:
        """Returns a response with its outputs in the memory that the caller prefers.

        Strings stay on the host, and so does all for which there is no GPU or no room.
        """
        if preferred.is_host or response.failure is not None:
            return response
        tensors = [self._moved(tensor, preferred.device) for tensor in response.tensors]
        return InferenceResponse.received(tensors, None, response.parameter_values)

    def _moved(self, tensor: Tensor, device: int) -> Tensor:
        dtype, _, array = tensor.to_wire()
        if dtype is BYTES or not array.nbytes or getattr(array, "device", None) == device:
            return tensor
        try:
            return DeviceTensor.of_device(tensor.name(), copy_to_device(array, device))
        except ServerError as error:
            cause = error.__cause__
            is_full = isinstance(cause, CudaError) and cause.code == cuda_driver.OUT_OF_MEMORY
            self.count_copy(CopyReason.OUT_OF_MEMORY if is_full else CopyReason.DRIVER_ERROR)
            return tensor

    def _input(self, ref: TensorRef, shape: tuple[int, ...], place: DevicePlace) -> Tensor:
        array = self._array(place, ref.dtype, shape)
        if self.keeps_on_device:
            return DeviceTensor.of_device(ref.name, array)
        size = array.nbytes
        block = self._allocate(size) if size > INLINE_TENSOR_BYTES else None
        if block is None:
            return Tensor.from_array(ref.name, array.copy())
        block.is_input = True
        memory = block_bytes(block)[:size]
        write_to_host((array,), memory.data)
        return Tensor.from_array(ref.name, memory.view(array.dtype).reshape(array.shape))

    def _array(self, place: DevicePlace, dtype: int, shape: tuple[int, ...]) -> DeviceArray:
        kind = BY_NUMBER[dtype].numpy
        if not place.lease:
            return self._regions.array(place, kind, shape)
        if place.own:
            return self._own_array(place, kind, shape)
        try:
            return self._regions.lease(place, kind, shape)
        except ServerError:
            self._post(DeviceNotes(unopened={place.number: CopyReason.CANNOT_OPEN}))
            raise

    def _own_array(
        self, place: DevicePlace, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> DeviceArray:
        """Returns a tensor that this process has exported, and gets back."""
        kept = self._exports.kept(place.own)
        self._end_lease(place.lease)  # the array below keeps it here
        if kept is None:
            raise InternalError(f"GPU memory {place.region} was given up before it came back")
        address = kept.base + place.offset
        array = kept.array
        return DeviceArray(address, array.device, dtype, shape, array, Order.COMPLETE)

    # What goes

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

    def share_outputs(
        self, response: InferenceResponse, names: Collection[str], wish: DeviceWish
    ) -> InferenceResponse:
        """Keep those outputs in GPU memory that are there and wanted there."""
        if response.failure is not None:
            return response
        wanted = names if wish.outputs is None else [each for each in wish.outputs if each in names]
        tensors = self.share(response.tensors, wanted, wish.gpu)
        return InferenceResponse.received(tensors, None, response.parameter_values)

    def share(self, tensors: Sequence[Tensor], wanted: Collection[str], gpu: bytes) -> list[Tensor]:
        """Returns what is sent in place of tensors, for whoever takes these names on this device.

        That is the tensor itself if it is on the host, or has to go through it. A name that several
        tensors have does not say which of them is shared.
        """
        counts = Counter(tensor.name() for tensor in tensors)
        return [
            self._shared(tensor, gpu)
            if tensor.name() in wanted and counts[tensor.name()] == 1
            else tensor
            for tensor in tensors
        ]

    def _shared(self, tensor: Tensor, gpu: bytes) -> Tensor:
        array: object = tensor.to_wire()[2] if not tensor.is_cpu() else None
        if not isinstance(array, DeviceArray) or isinstance(array, PlacedArray):
            return tensor
        try:
            export, lease = self._export(array, gpu)
        except NotShareableError as error:
            self.count_copy(error.reason)
            return tensor
        return DeviceTensor.of_device(tensor.name(), SharedArray.exported(array, export, lease))

    def _export(self, array: DeviceArray, gpu: bytes) -> tuple[DeviceExport, Lease | None]:
        found = self._regions.lease_at(array)
        if found is not None:
            try:
                wait_for_device(array)  # the model may have written to it
            except ServerError as error:
                raise NotShareableError(CopyReason.DRIVER_ERROR) from error
            lease, offset = found
            return DeviceExport(0, array.nbytes, offset, lease=lease.number), lease
        if self._regions.is_open_at(array):
            raise NotShareableError(CopyReason.CLIENT_REGION)
        return self._exports.add(array, gpu), None

    def _tell_gone(self, allocations: list[int]) -> None:
        self._post(DeviceNotes(gone=allocations))

    def count_copy(self, reason: str) -> None:
        """Tell the server that a tensor went through the host."""
        self._post(DeviceNotes(copied={reason: 1}))

    def take_back(self, tensors: Iterable[Tensor]) -> None:
        """Give up tensors that were to be sent, and were not."""
        exports = exports_of(tensors) or {}
        self._exports.release([export.block for export in exports.values() if export.block])

    def take_back_responses(self, responses: Iterable[InferenceResponse | None]) -> None:
        """The same for the outputs of responses."""
        for response in responses:
            if response is not None:
                self.take_back(response.tensors)

    # What the server says

    def on_drop(self, received: Received) -> Waiter:
        """Close the regions that a message names."""
        frame = received.frame
        assert isinstance(frame, DropRegions)
        return _Ends(self._regions.drop(frame.numbers))

    def on_release(self, received: Received) -> Waiter:
        """Let tensors go that nobody uses any more."""
        frame = received.frame
        assert isinstance(frame, ReleaseExports)
        return _Ends(self._exports.release(frame.blocks))

    def _end_lease(self, lease: int) -> None:
        if os.getpid() == self._process:  # a forked process has no lease of its own
            self._post(DeviceNotes(leases=[lease]))


def exports_of(tensors: Iterable[Tensor]) -> dict[str, DeviceExport] | None:
    """Returns where those of some tensors are that stay in GPU memory; None if none does."""
    exports = {}
    for tensor in tensors:
        if not tensor.is_cpu():
            array = tensor.to_wire()[2]
            if isinstance(array, SharedArray):
                exports[tensor.name()] = array.export
    return exports or None
