# SPDX-License-Identifier: Apache-2.0
"""The `reshape` of an ensemble's own tensors: clients see other shapes than the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError
from pytriton.base.messages import InferTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.base.model_spec import ModelSpec, Reshape, TensorSpec


class Reshaping:
    """Converts the shapes of tensors where a request enters and leaves an ensemble.

    Args:
        spec: The specification of the ensemble.
    """

    __slots__ = ("_batching", "_inputs", "_outputs")

    def __init__(self, spec: ModelSpec) -> None:
        self._batching = spec.max_batch_size > 0
        self._inputs = _reshapes(spec.inputs)
        self._outputs = _reshapes(spec.outputs)

    def __bool__(self) -> bool:
        """Whether any tensor is reshaped."""
        return bool(self._inputs or self._outputs)

    def inputs(self, tensors: dict[str, InferTensor]) -> dict[str, InferTensor]:
        """Returns the inputs of a valid request as the steps get them."""
        if not self._inputs:
            return tensors
        return {name: self._convert(tensor, self._inputs) for name, tensor in tensors.items()}

    def outputs(self, tensors: list[InferTensor]) -> list[InferTensor]:
        """Returns outputs as clients get them.

        Raises:
            InternalError: The steps made an output of another size than the configuration says.
        """
        if not self._outputs:
            return tensors
        return [self._convert(tensor, self._outputs) for tensor in tensors]

    def _convert(self, tensor: InferTensor, reshapes: Mapping[str, Reshape]) -> InferTensor:
        reshape = reshapes.get(tensor.name)
        if reshape is None:
            return tensor
        shape = reshape.convert(tensor.shape, batching=self._batching)
        if shape is None:
            raise InternalError(
                f"output tensor shape does not match size of output for '{tensor.name}'"
            )
        return InferTensor(tensor.name, tensor.dtype, shape, tensor.data, tensor.strings)


def _reshapes(tensors: Mapping[str, TensorSpec]) -> dict[str, Reshape]:
    return {name: each.reshape for name, each in tensors.items() if each.reshape is not None}
