# SPDX-License-Identifier: Apache-2.0
"""Converts arrays of a batch to tensors of torch and back, without a copy on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.dtypes import BF16
from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.framework_backends.pytorch.configuration import (
    STRING,
    TORCH_NAMES,
    TensorEntry,
)
from pytriton.runtime.framework_backends.pytorch.library import Torch


class TensorConverter:
    """Makes the tensors of one instance.

    Args:
        torch: The module.
        device: Where inputs go; None leaves them on the CPU.
        outputs: The outputs and states of the model.
    """

    def __init__(self, torch: Torch, device: Any, outputs: Sequence[TensorEntry]) -> None:
        self._torch = torch
        is_cpu = device is None or device.type == "cpu"
        self._device = None if is_cpu else device
        self._data_types = {getattr(torch, name): config for config, name in TORCH_NAMES.items()}
        self._expected = {entry.name: entry.data_type for entry in outputs}

    def tensor(self, array: NDArray[Any]) -> Any:
        """Returns the tensor of an input. On the CPU it is the memory of the array itself.

        The worker owns this memory, so a model may change its inputs.
        """
        if array.dtype.kind in "OV":
            return self._unusual(array)
        tensor = self._torch.from_numpy(array)
        return tensor if self._device is None else tensor.to(self._device)

    def _unusual(self, array: NDArray[Any]) -> Any:
        if array.dtype.kind == "O":
            return array.tolist()
        tensor = self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return tensor if self._device is None else tensor.to(self._device)

    def outputs(
        self, results: Sequence[Any], positions: Mapping[str, int], wanted: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """Returns the wanted outputs as arrays.

        Raises:
            InvalidArgumentError: The model has no such result, or it has another type.
        """
        arrays = {}
        for name in wanted:
            position = positions[name]
            if position >= len(results):
                raise InvalidArgumentError(
                    f"The output {name} in the model configuration refers to an output index which "
                    f"doesn't exist. This model has {len(results)} outputs"
                )
            arrays[name] = self._array(name, results[position])
        return arrays

    def _array(self, name: str, result: Any) -> NDArray[Any]:
        expected = self._expected[name]
        if isinstance(result, list):
            self._check_type(name, expected, STRING)
            array: NDArray[Any] = np.empty(len(result), object)
            array[:] = result
            return array
        data_type = self._data_types.get(result.dtype)
        if data_type != expected:
            self._check_type(name, expected, data_type or str(result.dtype))
        if result.ndim == 0:
            raise InvalidArgumentError(f"output '{name}' is a scalar which is not supported.")
        if data_type == BF16.config_name:
            return _contiguous(result.view(self._torch.int16)).view(BF16.numpy)
        return _contiguous(result)

    def _check_type(self, name: str, expected: str, provided: str) -> None:
        if expected != provided:
            raise InvalidArgumentError(
                f"configuration expects datatype {expected} for output '{name}', model provides "
                f"{provided}"
            )


def _contiguous(tensor: Any) -> NDArray[Any]:
    """Returns the elements of a tensor of any device in C order; copied only if they are not."""
    array: NDArray[Any] = tensor.numpy(force=True)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
