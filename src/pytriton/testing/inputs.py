# SPDX-License-Identifier: Apache-2.0
"""From the requests of a test to the inputs of a model: tensors, batches and states of sequences.

Requests are checked, and joined to batches, as a server does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.base.messages import InferRequest, InferResponse, InferTensor, RequestFields
from pytriton.base.model_spec import ModelSpec, ModelTensor
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.serving.engine.sequence.sequence_inputs import SequenceInputs, SequenceStates
from pytriton.serving.engine.string_count import count_strings
from pytriton.serving.engine.validation import validate
from pytriton.testing.records import Request

_SEQUENCE_START = 1
_SEQUENCE_END = 2


def make_tensors(request: Request, spec: ModelSpec) -> list[Tensor]:
    """Make the tensors of a request's inputs.

    Raises:
        InvalidArgumentError: they do not fit the configuration, if that declares any tensor.
        TritonModelException: the protocol does not have the type of the array.
    """
    tensors = [
        _tensor(name, value, spec.inputs.get(name)) for name, value in request.inputs.items()
    ]
    if spec.inputs or spec.outputs:
        _check(request, tensors, spec)
    return [_reshaped(tensor, spec) for tensor in tensors]


def _reshaped(tensor: Tensor, spec: ModelSpec) -> Tensor:
    """Returns the tensor in the shape in which the model gets it."""
    expected = spec.inputs.get(tensor.name())
    if expected is None or expected.reshape is None:
        return tensor
    array = tensor.as_numpy()
    shape = expected.reshape.convert(array.shape, batching=spec.max_batch_size > 0)
    assert shape is not None, "the shape was checked before"
    return Tensor.from_array(tensor.name(), array.reshape(shape))


def _tensor(name: str, value: Any, expected: ModelTensor | None) -> Tensor:
    if isinstance(value, np.ndarray) or expected is None:
        array = np.array(value)
    else:
        array = np.array(value, dtype=expected.dtype.numpy)
    if array.dtype.kind == "U":
        array = array.astype(object)
    return Tensor.from_array(name, copied_array(Tensor(name, array)))


def copied_array(tensor: Tensor) -> NDArray[Any]:
    """Returns a copy of the elements of a tensor; those of a BYTES tensor are `bytes`."""
    dtype, shape, array = tensor.to_wire()
    if dtype is dtypes.BYTES:
        return dtypes.bytes_elements_to_array(dtypes.array_to_bytes_elements(array), shape)
    copy: NDArray[Any] = array.copy()
    return copy


def _check(request: Request, tensors: list[Tensor], spec: ModelSpec) -> None:
    message = InferRequest(
        spec.name,
        {tensor.name(): _to_wire(tensor) for tensor in tensors},
        "",
        RequestFields(request.id),
        outputs=None if request.outputs is None else tuple(request.outputs),
    )
    count_strings(message)
    validate(message, spec)


@dataclass(frozen=True, eq=False)
class Member:
    """A request, with the arrays of its inputs."""

    request: Request
    arrays: dict[str, NDArray[Any]]

    @property
    def rows(self) -> int:
        """The number of rows in a batch."""
        return next((len(array) for array in self.arrays.values()), 1)

    @property
    def structure(self) -> dict[str, tuple[Any, ...]]:
        """Type and shape of each input, which are the same for all requests of a batch."""
        return {name: (array.dtype, array.shape[1:]) for name, array in self.arrays.items()}


def batches(members: Sequence[Member], spec: ModelSpec) -> Iterator[list[Member]]:
    """Join requests in their order: up to the maximum batch size, with equal inputs.

    Requests of the same sequence are never together, because one may need the states of the other.
    """
    batch: list[Member] = []
    for member in members:
        if batch and not _fits(batch, member, spec):
            yield batch
            batch = []
        batch.append(member)
    if batch:
        yield batch


def _fits(batch: list[Member], member: Member, spec: ModelSpec) -> bool:
    joins = spec.batcher is not None or spec.sequence is not None
    if not joins or not spec.max_batch_size:
        return False
    if sum(each.rows for each in batch) + member.rows > spec.max_batch_size:
        return False
    if spec.sequence is not None:
        ids = {each.request.correlation_id for each in batch}
        if member.request.correlation_id in ids:
            return False
    return batch[0].structure == member.structure


class HarnessSequences:
    """The states of all sequences that have not ended, as a server keeps them.

    Unlike a server, it accepts a sequence without a start flag, and begins with the initial states.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._inputs = SequenceInputs(spec)
        self._states: dict[int | str, SequenceStates] = {}

    def inputs(self, correlation_id: int | str, flags: int) -> list[Tensor]:
        """Returns the control inputs and states of a request."""
        request = InferRequest(
            self._spec.name, {}, fields=RequestFields(correlation_id=correlation_id)
        )
        states = self._states.setdefault(correlation_id, self._inputs.new_states())
        is_start, is_end = bool(flags & _SEQUENCE_START), bool(flags & _SEQUENCE_END)
        self._inputs.add(request, states, is_start=is_start, is_end=is_end)
        return [_from_wire(tensor) for tensor in request.inputs.values()]

    def keep(self, correlation_id: int | str, response: InferenceResponse) -> None:
        """Keep the states in a response for the next request.

        Raises:
            InternalError: a state has another type or shape than configured.
        """
        outputs = [] if response.failure is not None else map(_to_wire, response.tensors)
        message = InferResponse(self._spec.name, str(self._spec.version), "", list(outputs))
        self._inputs.take(self._states[correlation_id], message)


def _from_wire(tensor: InferTensor) -> Tensor:
    if tensor.dtype is dtypes.BYTES:
        array = dtypes.bytes_elements_to_array(dtypes.decode_bytes(tensor.data), tensor.shape)
    else:
        array = np.frombuffer(bytearray(tensor.data), tensor.dtype.numpy).reshape(tensor.shape)
    return Tensor.from_array(tensor.name, array)


def _to_wire(tensor: Tensor) -> InferTensor:
    dtype, shape, array = tensor.to_wire()
    if dtype is dtypes.BYTES:
        data = dtypes.encode_bytes(dtypes.array_to_bytes_elements(array))
    else:
        data = array.tobytes()
    return InferTensor(tensor.name(), dtype, shape, data)
