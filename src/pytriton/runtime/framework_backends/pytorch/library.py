# SPDX-License-Identifier: Apache-2.0
"""The edge to torch: its import, settings of the process, and tensors made of arrays and back.

Each instance has a process of its own, so settings hold for one model only. On the CPU tensors are
not copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base.dtypes import BF16
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.pytorch.configuration import (
    STRING,
    TORCH_NAMES,
    ScriptParameters,
    TensorEntry,
)
from pytriton.runtime.framework_backends.shared import import_wheel, is_utf8
from pytriton.runtime.pb_utils.gpu_arrays import GpuArray

Torch = Any  # the module; it is imported when it is needed


def import_torch() -> Torch:
    """Returns torch.

    Raises:
        UnavailableError: It is not installed.
    """
    return import_wheel("torch", "torch", "pytorch")


def apply_parameters(torch: Torch, parameters: ScriptParameters) -> None:
    """Set what holds for the whole process; before anything is loaded."""
    set_threads(torch, parameters.intra_op_threads, parameters.inter_op_threads)
    if parameters.disables_optimized_execution:
        torch._C._set_graph_executor_optimize(False)  # noqa: SLF001  it has no public name
    if parameters.disables_cudnn:
        torch.backends.cudnn.enabled = False
    for value, setter in (
        (parameters.tensor_fuser, "_jit_set_texpr_fuser_enabled"),
        (parameters.jit_profiling, "_jit_set_profiling_mode"),
        (parameters.jit_executor, "_jit_set_profiling_executor"),
    ):
        if value is not None:
            getattr(torch._C, setter)(value)  # noqa: SLF001  it has no public name


def set_threads(torch: Torch, intra_op: int, inter_op: int) -> None:
    """Set the numbers of threads; 0 leaves torch's own."""
    if intra_op:
        torch.set_num_threads(intra_op)
    if inter_op:
        torch.set_num_interop_threads(inter_op)


def device_of(torch: Torch, kind: str, device_id: str) -> Any:
    """Returns the device of an instance; None for KIND_MODEL, whose model chooses for itself.

    Args:
        torch: The module.
        kind: CPU, GPU or MODEL.
        device_id: The number of the GPU.

    Raises:
        InvalidArgumentError: torch cannot use this GPU.
    """
    if kind != "GPU":
        return torch.device("cpu") if kind == "CPU" else None
    count = torch.cuda.device_count()
    if int(device_id) >= count:
        raise InvalidArgumentError(
            f"expected GPU {device_id} for an instance of KIND_GPU, but torch "
            f"{torch.__version__} can use {count} GPUs"
        )
    return torch.device(f"cuda:{device_id}")


def capability_of(torch: Torch, device: Any) -> str:
    """Returns the compute capability of a GPU, as "8.0"; "" for other devices."""
    if device is None or device.type != "cuda":
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}.{minor}"


def execution_failure(error: BaseException) -> InternalError:
    """Returns the error with which a client gets what torch raised."""
    return InternalError(f"PyTorch execute failure: {error}".rstrip())


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
        self.keeps_on_gpu = False  # outputs that are there are returned as tensors
        self._data_types = {getattr(torch, name): config for config, name in TORCH_NAMES.items()}
        self._expected = {entry.name: entry.data_type for entry in outputs}

    def tensor(self, array: NDArray[Any] | GpuArray) -> Any:
        """Returns the tensor of an input. On the CPU it is the memory of the array itself.

        The worker owns this memory, so a model may change its inputs. An input on a GPU is memory
        of another process, so it is copied, there.
        """
        if isinstance(array, GpuArray):
            return self._torch.from_dlpack(array).to(self._device).clone()
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
        if self.keeps_on_gpu and result.is_cuda:
            # It stays there until it is known where it goes. Others may read it during the next
            # call, which may change what the model returned: a buffer, or memory of a CUDA graph.
            layout = self._torch.contiguous_format
            on_gpu: NDArray[Any] = result.detach().clone(memory_format=layout)  # not of numpy
            return on_gpu
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


def find_invalid(array: NDArray[Any], rows: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the strings that are not UTF-8: the position of the request, and the element.

    Args:
        array: The strings of all requests, in one dimension.
        rows: The number of strings of each request; a single request has all of them.
    """
    elements = array.tolist()
    if b"".join(elements).isascii():  # most are, and it takes a tenth of the time
        return []
    invalid = [index for index, element in enumerate(elements) if not is_utf8(element)]
    if len(rows) == 1:
        return [(0, index) for index in invalid]
    ends = list(accumulate(rows))
    return [(int(np.searchsorted(ends, index, "right")), index) for index in invalid]
