# SPDX-License-Identifier: Apache-2.0
"""Imports torch when a model is loaded, and applies to it what a model's parameters say.

Each instance has a process of its own, so these settings hold for one model only.
"""

from __future__ import annotations

from typing import Any

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.pytorch.configuration import ScriptParameters
from pytriton.runtime.framework_backends.shared import import_wheel

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
