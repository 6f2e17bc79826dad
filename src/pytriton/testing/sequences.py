# SPDX-License-Identifier: Apache-2.0
"""Control inputs and states of the sequences that a test sends to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytriton.base import dtypes
from pytriton.base.messages import InferRequest, InferResponse, InferTensor
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.serving.engine.sequence.sequence_inputs import SequenceInputs, SequenceStates

if TYPE_CHECKING:
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.pb_utils.response import InferenceResponse

_START = 1
_END = 2


class HarnessSequences:
    """The states of all sequences that have not ended, as a server keeps them.

    A harness does not refuse a sequence that begins without its start: it begins with the initial
    states then.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._inputs = SequenceInputs(spec)
        self._states: dict[int | str, SequenceStates] = {}

    def inputs(self, correlation_id: int | str, flags: int) -> list[Tensor]:
        """Returns the control inputs and states of a request."""
        request = InferRequest(self._spec.name, {}, correlation_id=correlation_id)
        states = self._states.setdefault(correlation_id, self._inputs.new_states())
        is_start, is_end = bool(flags & _START), bool(flags & _END)
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
