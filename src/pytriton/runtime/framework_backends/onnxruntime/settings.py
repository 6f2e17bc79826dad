# SPDX-License-Identifier: Apache-2.0
"""The settings of a session: parameters of a model's configuration and of the backend. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from pytriton.base.errors import InvalidArgumentError

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
        backend_config: What `--backend-config` says for this backend.

    Raises:
        InvalidArgumentError: A value has the wrong type.
    """
    parameters = string_parameters(config)
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


def string_parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the parameters of a configuration."""
    parameters = config.get("parameters") or {}
    return {key: value.get("string_value", "") for key, value in parameters.items()}


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
