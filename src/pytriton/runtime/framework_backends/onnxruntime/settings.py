# SPDX-License-Identifier: Apache-2.0
"""The settings of a session, and the execution providers that its operators run on. Pure.

In configurations providers are called execution accelerators. Their options are ONNX Runtime's, as
texts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pytriton.base.errors import InvalidArgumentError, UnavailableError
from pytriton.runtime.framework_backends.shared import read_parameters

_INTEGER = re.compile(r"\s*[+-]?\d+")
_LARGEST_INTEGER = 2**31 - 1
_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
_ALLOCATOR_KEY = "session.use_device_allocator_for_initializers"
_SHRINKAGE_KEY = "memory.enable_memory_arena_shrinkage"


@dataclasses.dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session is made and run.

    Attributes:
        graph_level: A name of ONNX Runtime's `GraphOptimizationLevel`.
        is_parallel: Whether operators that do not depend on each other run at the same time.
        intra_op_threads: The threads of one operator; 0: as many as there are cores.
        inter_op_threads: The threads of a parallel session; 0: as many as there are cores.
        uses_global_pool: Whether all sessions of a process share their threads.
        memory_arena: Whether memory of the CPU is kept for the next run; None: the default.
        memory_pattern: Whether memory is planned for shapes that repeat; None: the default.
        session_entries: Entries of the session's configuration.
        run_entries: Entries of the configuration of every run.
        operator_libraries: Libraries with operators of users.
    """

    graph_level: str = "ORT_ENABLE_ALL"
    is_parallel: bool = False
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    uses_global_pool: bool = False
    memory_arena: bool | None = None
    memory_pattern: bool | None = None
    session_entries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    run_entries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    operator_libraries: tuple[str, ...] = ()


def read_settings(config: Mapping[str, Any], backend_config: Mapping[str, str]) -> SessionSettings:
    """Read the settings of a model's session.

    Args:
        config: The model's configuration, as models of the Python backend get it.
        backend_config: The settings of `--backend-config` for this backend.

    Raises:
        InvalidArgumentError: A value has the wrong type.
    """
    parameters = read_parameters(config)
    has_pool = to_boolean(backend_config.get("enable-global-threadpool", "false"))
    # With a global pool, the numbers of threads come from the backend's settings alone.
    threads = backend_config if has_pool else parameters
    graph = (config.get("optimization") or {}).get("graph") or {}
    libraries = (config.get("model_operations") or {}).get("op_library_filename") or ()
    shrinkage = parameters.get(_SHRINKAGE_KEY)
    return SessionSettings(
        graph_level=_GRAPH_LEVELS.get(int(graph.get("level", 0)), "ORT_ENABLE_ALL"),
        is_parallel=_is_parallel(parameters.get("execution_mode", "0")),
        intra_op_threads=max(to_integer(threads.get("intra_op_thread_count", "0")), 0),
        inter_op_threads=max(to_integer(threads.get("inter_op_thread_count", "0")), 0),
        uses_global_pool=has_pool,
        memory_arena=_optional_boolean(parameters, "enable_mem_arena"),
        memory_pattern=_optional_boolean(parameters, "enable_mem_pattern"),
        session_entries={_ALLOCATOR_KEY: parameters.get(_ALLOCATOR_KEY, "0")},
        run_entries={} if shrinkage is None else {_SHRINKAGE_KEY: shrinkage},
        operator_libraries=tuple(libraries),
    )


def to_boolean(text: str) -> bool:
    """Read a boolean as Triton does.

    Raises:
        InvalidArgumentError: The text is none.
    """
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise InvalidArgumentError(f"failed to convert '{text}' to boolean")
    return value


def to_integer(text: str) -> int:
    """Read a 32-bit number as Triton does, which ignores what follows the digits.

    Raises:
        InvalidArgumentError: The text does not begin with one.
    """
    match = _INTEGER.match(text)
    if match is None or abs(int(match.group())) > _LARGEST_INTEGER:
        raise InvalidArgumentError(f"failed to convert '{text}' to integral number")
    return int(match.group())


def _optional_boolean(parameters: Mapping[str, str], key: str) -> bool | None:
    return to_boolean(parameters[key]) if key in parameters else None


def _is_parallel(text: str) -> bool:
    mode = to_integer(text)
    if mode not in (0, 1):
        raise InvalidArgumentError(
            f"execution_mode must be 0 (sequential) or 1 (parallel), got '{text}'"
        )
    return mode == 1


CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"

Provider = tuple[str, dict[str, str]]

_PRECISIONS = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
# Triton's own names of options of TensorRT, with those of ONNX Runtime.
_TENSORRT_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_BOOLEANS = {
    "int8_use_native_calibration_table", "trt_build_heuristics_enable",
    "trt_context_memory_sharing_enable", "trt_cuda_graph_enable", "trt_detailed_build_log",
    "trt_dla_enable", "trt_dump_ep_context_model", "trt_dump_subgraphs",
    "trt_engine_cache_enable", "trt_force_sequential_engine_build", "trt_force_timing_cache",
    "trt_layer_norm_fp32_fallback", "trt_sparsity_enable", "trt_timing_cache_enable",
}  # fmt: skip
_TENSORRT_INTEGERS = {
    "trt_auxiliary_streams", "trt_builder_optimization_level", "trt_dla_core",
    "trt_ep_context_embed_mode", "trt_max_partition_iterations", "trt_min_subgraph_size",
}  # fmt: skip
_TENSORRT_TEXTS = {
    "int8_calibration_table_name", "max_workspace_size_bytes", "trt_engine_cache_path",
    "trt_engine_cache_prefix", "trt_ep_context_file_path", "trt_extra_plugin_lib_paths",
    "trt_profile_max_shapes", "trt_profile_min_shapes", "trt_profile_opt_shapes",
    "trt_tactic_sources", "trt_timing_cache_path",
}  # fmt: skip
_CUDA_BOOLEANS = ("do_copy_in_default_stream", "use_ep_level_unified_stream")
# Parameters of the model itself, older than accelerators: their default, and the names of numbers.
_OLD_CUDA_PARAMETERS: dict[str, tuple[str, dict[str, str]]] = {
    "cudnn_conv_algo_search": ("0", {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"}),
    "gpu_mem_limit": (str(2**64 - 1), {}),
    "arena_extend_strategy": ("0", {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"}),
    "do_copy_in_default_stream": ("1", {}),
}


def choose_providers(
    config: Mapping[str, Any], kind: str, device_id: int, available: Collection[str]
) -> list[Provider]:
    """Choose the providers of an instance, the preferred one first.

    Args:
        config: The model's configuration, as models of the Python backend get it.
        kind: The kind of the instance: CPU, GPU or MODEL.
        device_id: The device of a GPU instance.
        available: The providers that the installed package has.

    Raises:
        InvalidArgumentError: An accelerator or one of its parameters is not known, or the installed
            package does not have it.
        UnavailableError: The instance is on a GPU and the installed package runs on none.
    """
    accelerators = (config.get("optimization") or {}).get("execution_accelerators") or {}
    providers = []
    if kind == "GPU":  # other instances do not read these, not even to check their names
        providers = _gpu_providers(
            config, accelerators.get("gpu_execution_accelerator") or (), device_id, available
        )
    for accelerator in accelerators.get("cpu_execution_accelerator") or ():
        if accelerator["name"] != "openvino" or OPENVINO not in available:
            raise _unknown(accelerator)
        providers.append((OPENVINO, {"device_type": "CPU"}))
    providers.append((CPU, {}))
    return providers


def _gpu_providers(
    config: Mapping[str, Any],
    accelerators: Sequence[Mapping[str, Any]],
    device_id: int,
    available: Collection[str],
) -> list[Provider]:
    if CUDA not in available:
        raise UnavailableError(
            f"unable to load model '{config['name']}': its instances are on GPUs, but the installed"
            f" onnxruntime has no {CUDA}, only {', '.join(available)}. Install onnxruntime-gpu, or"
            " set the kind of the instance_group to KIND_CPU"
        )
    cuda = _cuda_provider(config, {}, device_id)
    providers: list[Provider] = []
    for accelerator in accelerators:
        parameters = accelerator.get("parameters") or {}
        if accelerator["name"] == "tensorrt" and TENSORRT in available:
            options = {"device_id": str(device_id), **_tensorrt_options(parameters)}
            providers.append((TENSORRT, options))
        elif accelerator["name"] == "cuda":
            cuda = _cuda_provider(config, parameters, device_id)
            providers.append(cuda)
        else:
            raise _unknown(accelerator)
    return providers if cuda in providers else [*providers, cuda]


def _unknown(accelerator: Mapping[str, Any]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"unknown Execution Accelerator '{accelerator['name']}' is requested"
    )


def _cuda_provider(
    config: Mapping[str, Any], parameters: Mapping[str, str], device_id: int
) -> Provider:
    """Returns the options: defaults, then those of the accelerator, then those of the model."""
    of_model = read_parameters(config)
    options = {}
    for name, (default, words) in _OLD_CUDA_PARAMETERS.items():
        value = of_model.get(name, default)
        options[name] = words.get(value, value)
        if name in parameters and name not in of_model:
            options[name] = parameters[name]
    options.update({name: text for name, text in parameters.items() if name not in options})
    for name in _CUDA_BOOLEANS:
        if name in options:
            options[name] = str(int(to_boolean(options[name])))
    options["device_id"] = str(device_id)
    return CUDA, options


def _tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, text in parameters.items():
        if name == "precision_mode":
            if text not in _PRECISIONS:
                raise InvalidArgumentError(f"unsupported precision mode '{text}' is requested")
            options.update(_PRECISIONS[text])
            continue
        if name in _TENSORRT_BOOLEANS:
            value = str(int(to_boolean(text)))
        elif name in _TENSORRT_INTEGERS:
            value = str(to_integer(text))
        elif name in _TENSORRT_TEXTS:
            value = text
        else:
            raise InvalidArgumentError(
                f"unknown parameter '{name}' is provided for TensorRT Execution Accelerator"
            )
        options[_TENSORRT_RENAMED.get(name, name)] = value
    return options
