# SPDX-License-Identifier: Apache-2.0
"""The parameters of models of this backend, read from strings; unknown ones are ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytriton.base.errors import InvalidArgumentError

COMPILE_PARAMETER = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_TRUE = ("true", "on", "1")
_FALSE = ("false", "off", "0")


@dataclass(frozen=True, slots=True)
class ScriptParameters:
    """Those of TorchScript models and packages; None leaves torch's own setting."""

    disables_optimized_execution: bool = False
    inference_mode: bool = True
    disables_cudnn: bool = False
    tensor_fuser: bool | None = None
    jit_profiling: bool | None = None
    jit_executor: bool | None = None
    shares_weights: bool = False
    cleans_cache: bool = False
    intra_op_threads: int = 0  # 0: torch decides
    inter_op_threads: int = 0


@dataclass(frozen=True, slots=True)
class ModuleParameters:
    """Those of modules in Python."""

    threads: int = 1
    inter_op_threads: int = 1
    shares_weights: bool = False
    compile_arguments: dict[str, Any] = field(default_factory=dict)


def read_script_parameters(config: Mapping[str, Any]) -> ScriptParameters:
    """Returns the parameters of a TorchScript model or a package.

    Raises:
        InvalidArgumentError: A value is not what its parameter expects.
    """
    values = _strings(config)
    return ScriptParameters(
        disables_optimized_execution=_flag(values, "DISABLE_OPTIMIZED_EXECUTION"),
        inference_mode=_flag(values, "INFERENCE_MODE", default=True),
        disables_cudnn=_flag(values, "DISABLE_CUDNN"),
        tensor_fuser=_given_flag(values, "ENABLE_TENSOR_FUSER"),
        jit_profiling=_given_flag(values, "ENABLE_JIT_PROFILING"),
        jit_executor=_given_flag(values, "ENABLE_JIT_EXECUTOR"),
        shares_weights=_flag(values, "ENABLE_WEIGHT_SHARING"),
        cleans_cache=_flag(values, "ENABLE_CACHE_CLEANING"),
        intra_op_threads=max(0, _number(values, "INTRA_OP_THREAD_COUNT", 0)),
        inter_op_threads=max(0, _number(values, "INTER_OP_THREAD_COUNT", 0)),
    )


def read_module_parameters(config: Mapping[str, Any]) -> ModuleParameters:
    """Returns the parameters of a module in Python.

    Raises:
        InvalidArgumentError: A value is not what its parameter expects.
    """
    values = _strings(config)
    return ModuleParameters(
        threads=_positive(values, "NUM_THREADS"),
        inter_op_threads=_positive(values, "NUM_INTEROP_THREADS"),
        shares_weights=_flag(values, "ENABLE_WEIGHT_SHARING"),
        compile_arguments=_compile_arguments(values),
    )


def _strings(config: Mapping[str, Any]) -> dict[str, str]:
    parameters = config.get("parameters") or {}
    return {key: str(entry.get("string_value", "")) for key, entry in parameters.items()}


def _given_flag(values: Mapping[str, str], key: str) -> bool | None:
    if key not in values:
        return None
    value = values[key].lower()
    if value not in (*_TRUE, *_FALSE):
        raise InvalidArgumentError(
            f"failed to convert parameter {key} to a boolean: expected one of "
            f"{', '.join((*_TRUE, *_FALSE))}, got '{values[key]}'"
        )
    return value in _TRUE


def _flag(values: Mapping[str, str], key: str, *, default: bool = False) -> bool:
    given = _given_flag(values, key)
    return default if given is None else given


def _number(values: Mapping[str, str], key: str, default: int) -> int:
    if key not in values:
        return default
    try:
        return int(values[key])
    except ValueError:
        raise InvalidArgumentError(
            f"failed to convert parameter {key} to an integer, got '{values[key]}'"
        ) from None


def _positive(values: Mapping[str, str], key: str) -> int:
    number = _number(values, key, 1)
    if number < 1:
        raise InvalidArgumentError(f"expected a positive number as parameter {key}, got {number}")
    return number


def _compile_arguments(values: Mapping[str, str]) -> dict[str, Any]:
    text = values.get(COMPILE_PARAMETER, "")
    if not text:
        return {}
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"failed to parse parameter {COMPILE_PARAMETER} as JSON: {error}"
        ) from None
    if not isinstance(arguments, dict) or "model" in arguments:
        raise InvalidArgumentError(
            f"expected a JSON object without the key 'model' as parameter {COMPILE_PARAMETER}, "
            f"got {text}"
        )
    return arguments
