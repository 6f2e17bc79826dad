# SPDX-License-Identifier: Apache-2.0
"""Functions that describe buffers of inputs, outputs and states, and outputs that are not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.errors import InvalidArgumentError, NotFoundError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Kept, decoded, put_half_word, put_word, word
from pytriton.runtime.native_backend.records import InputWord
from pytriton.runtime.native_backend.server_objects import Attributes, BufferAttributes

if TYPE_CHECKING:
    from pytriton.runtime.native_backend.outputs import BackendOutput, BackendResponse
    from pytriton.runtime.native_backend.responses import BackendResponses


class OutputDescription:
    """What C was told of an output; lives as long as the output."""

    __slots__ = ("_table", "attributes", "handle", "kept")

    def __init__(self, table: BufferAttributes) -> None:
        self._table = table
        self.attributes = Attributes()
        self.handle = table.handles.add(self.attributes)
        self.kept = Kept()

    def __del__(self) -> None:
        self._table.handles.discard(self.handle)


class TensorQuestions:
    """Answers of what the backend asks about its tensors.

    Args:
        table: The attributes that exist.
        responses: Has the outputs and states.
    """

    def __init__(self, table: BufferAttributes, responses: BackendResponses) -> None:
        self._table = table
        self._responses = responses
        # Records of inputs are used again, so there are few.
        self._inputs: dict[int, tuple[int, Attributes]] = {}

    @export("TRITONBACKEND_InputBufferAttributes")
    def _input(self, record: int, index: int, buffer: int, place: int) -> None:
        if not record:
            raise InvalidArgumentError("expected a handle of an input, got NULL")
        if record not in self._inputs:
            attributes = Attributes()
            self._inputs[record] = self._table.handles.add(attributes), attributes
        handle, attributes = self._inputs[record]
        # As in Triton, an index that is none is no error: there is no buffer.
        is_there = index == 0
        attributes.byte_size = word(record, InputWord.SIZE) if is_there else 0
        put_word(buffer, word(record, InputWord.BUFFER) if is_there else 0)
        put_word(place, handle)

    @export("TRITONBACKEND_OutputBufferAttributes")
    def _output(self, handle: int, place: int) -> None:
        self._describe(self._responses.output(handle), place)

    @export("TRITONBACKEND_StateBufferAttributes")
    def _state(self, handle: int, place: int) -> None:
        self._describe(self._responses.state(handle), place)

    def _describe(self, output: BackendOutput, place: int) -> None:
        description = self._description(output)
        description.attributes.byte_size = output.size
        put_word(place, description.handle)

    def _description(self, output: BackendOutput) -> OutputDescription:
        if output.description is None:
            output.description = OutputDescription(self._table)
        return output.description

    @export("TRITONBACKEND_InferenceResponseOutputByName")
    def _by_name(
        self, handle: int, name: bytes | None, datatype: int, shape: int, dims: int
    ) -> None:
        wanted = decoded(name)
        for output in self._responses.response(handle).outputs:
            if output.name == wanted:
                self._tell(output, datatype, shape, dims)
                return
        raise NotFoundError(f"Output name {wanted} not found.")

    @export("TRITONBACKEND_InferenceResponseOutput")
    def _by_index(
        self, handle: int, index: int, name: int, datatype: int, shape: int, dims: int
    ) -> None:
        response: BackendResponse = self._responses.response(handle)
        count = len(response.outputs)
        if index >= count:
            raise InvalidArgumentError(f"out of bounds index {index}: response has {count} outputs")
        output = response.outputs[index]
        put_word(name, self._description(output).kept.string(output.name))
        self._tell(output, datatype, shape, dims)

    def _tell(self, output: BackendOutput, datatype: int, shape: int, dims: int) -> None:
        put_half_word(datatype, output.dtype)
        put_word(shape, self._description(output).kept.words(*output.shape))
        put_word(dims, len(output.shape))
