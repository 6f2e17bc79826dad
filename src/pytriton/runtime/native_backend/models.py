# SPDX-License-Identifier: Apache-2.0
"""TRITONBACKEND_Backend, _Model and _ModelInstance: what a backend knows, changes and reports.

A backend may change the configuration of its model; the server applies the changes, with its own
rules. It allocates memory, writes log lines and reports times, of the clock CLOCK_MONOTONIC.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton.base.dtypes import BY_CONFIG_NAME
from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
)
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import (
    Handles,
    KeptRecords,
    Texts,
    decoded,
    put_bool,
    put_field,
    put_half_word,
    put_word,
    word,
    words,
)
from pytriton.runtime.native_backend.records import (
    BACKEND_GETTERS,
    BACKEND_SETTERS,
    INSTANCE_GETTERS,
    INSTANCE_SETTERS,
    MODEL_GETTERS,
    MODEL_SETTERS,
    BackendWord,
    ModelWord,
    field_functions,
)
from pytriton.runtime.native_backend.server_objects import INSTANCE_KINDS, check_config_version

if TYPE_CHECKING:
    from pytriton.runtime.native_backend.server_objects import Documents
    from pytriton.runtime.transport.frames import Initialize

# The fields that a configuration may lack, with their numbers in Triton's message.
_SCHEDULERS = {"dynamic_batching": 11, "sequence_batching": 13, "ensemble_scheduling": 15}
_OPTIONAL = frozenset(
    {
        *_SCHEDULERS,
        "model_operations",
        "model_repository_agents",
        "model_transaction_policy",
        "model_metrics",
        "response_cache",
        "version_policy",
        "optimization",
    }
)
_TAKEN_OVER = ("max_batch_size", "input", "output", "model_transaction_policy")


def completed_config(config: dict[str, Any], proposed: Any) -> dict[str, Any]:
    """Returns a configuration with those changes of a backend that are taken over.

    Raises:
        InvalidArgumentError: The proposal is not a model configuration.
        InternalError: It has another scheduler.
    """
    if not isinstance(proposed, dict):
        raise InvalidArgumentError("expected a JSON object as model configuration")
    for field in proposed:
        if field not in config and field not in _OPTIONAL:
            raise InvalidArgumentError(f"{field}: Cannot find field.")
    _check_values(proposed)
    completed = dict(config)
    for field in _TAKEN_OVER:
        if field in proposed:
            completed[field] = proposed[field]
    chosen, wanted = (
        [field for field in _SCHEDULERS if field in each] for each in (config, proposed)
    )
    if not chosen:
        completed |= {field: proposed[field] for field in wanted}
    elif wanted != chosen:
        # Triton writes the number of the chosen one in both places.
        number = _SCHEDULERS[chosen[0]]
        raise InternalError(
            f"Cannot update scheduling choice from {number} to {number} when auto-completing."
        )
    return completed


def _check_values(proposed: dict[str, Any]) -> None:
    size = proposed.get("max_batch_size", 0)
    if not isinstance(size, int):
        raise InvalidArgumentError(f'(max_batch_size): invalid value "{size}" for type TYPE_INT32')
    for kind in ("input", "output"):
        for index, tensor in enumerate(proposed.get(kind, ())):
            datatype = tensor.get("data_type", "TYPE_INVALID")
            if datatype not in BY_CONFIG_NAME and datatype != "TYPE_INVALID":
                raise InvalidArgumentError(
                    f'({kind}[{index}].data_type): invalid value "{datatype}" for type'
                    " type.googleapis.com/inference.DataType"
                )


_FILESYSTEM = 0  # TRITONBACKEND_ARTIFACT_FILESYSTEM
_BLOCKING = 0  # TRITONBACKEND_EXECUTION_BLOCKING


class Models:
    """The backend of this process, its model and its instance.

    In Triton all models of a backend share it, and instances share their model. Here each instance
    has a process of its own, in which there is one of each.
    """

    def __init__(self, frame: Initialize, documents: Documents) -> None:
        arguments = frame.arguments
        self._documents = documents
        self.config: dict[str, Any] = json.loads(arguments["model_config"])
        self.changed_config = False
        # As in Triton, it also holds where the configuration is complete already.
        self._completes_config = (
            frame.completes_config or frame.backend_config.get("auto-complete-config") == "true"
        )
        self._group = _instance_group(self.config, arguments.get("model_instance_name", ""))
        self._texts = Texts()
        self._kept = kept = KeptRecords()
        self.memory_manager = kept.words(0)
        self.server = kept.words(0)
        self.attribute = kept.words(0)
        path = Path(frame.model_path)
        name = self.config.get("backend") or path.stem.removeprefix("libtriton_")
        self.backend = kept.words(
            kept.string(name),
            documents.new({"cmdline": frame.backend_config}),
            0,
            self.memory_manager,
            _BLOCKING,
            kept.string(str(path.parent)),
        )
        self.model = kept.words(
            kept.string(arguments["model_name"]),
            int(arguments.get("model_version", "1")),
            kept.string(arguments.get("model_repository", "")),
            self.backend,
            0,
            self.server,
        )
        self.instance = self._make_instance(arguments)

    def _make_instance(self, arguments: dict[str, str]) -> int:
        kept = self._kept
        kind = arguments.get("model_instance_kind", "CPU")
        device = int(arguments.get("model_instance_device_id", "0"))
        policy = {"CPU": "cpu", "GPU": f"gpu_{device}"}.get(kind, "model")
        if self._group is not None:
            policy = self._group.get("host_policy") or policy
        return kept.words(
            kept.string(arguments.get("model_instance_name", "")),
            INSTANCE_KINDS.index(kind),
            self.model,
            0,
            self._documents.new({policy: {}}),
            device,
        )

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Returns the functions that only read or write a field."""
        backend, model, instance = {self.backend}, {self.model}, {self.instance}
        return {
            **field_functions("a backend", backend, BACKEND_GETTERS, BACKEND_SETTERS),
            **field_functions("a model", model, MODEL_GETTERS, MODEL_SETTERS),
            **field_functions("an instance", instance, INSTANCE_GETTERS, INSTANCE_SETTERS),
        }

    @export("TRITONBACKEND_BackendArtifacts")
    def _artifacts(self, backend: int, kind: int, location: int) -> None:
        put_half_word(kind, _FILESYSTEM)
        put_word(location, word(backend, BackendWord.FOLDER))

    @export(
        "TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading",
        "TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup",
    )
    def _ignore_attribute(self, attribute: int, *_: int) -> None:
        """Accept what concerns instances in one process: each has a process of its own here."""

    @export("TRITONBACKEND_ModelReportMemoryUsage", "TRITONBACKEND_ModelInstanceReportMemoryUsage")
    def _ignore_memory_usage(self, owner: int, attributes: int, count: int) -> None:
        """Accept a report on memory, which nothing here shows."""

    @export("TRITONBACKEND_ModelRepository")
    def _repository(self, model: int, kind: int, location: int) -> None:
        put_half_word(kind, _FILESYSTEM)
        put_word(location, word(model, ModelWord.FOLDER))

    @export("TRITONBACKEND_ModelAutoCompleteConfig")
    def _auto_complete(self, model: int, out: int) -> None:
        put_bool(out, self._completes_config)

    @export("TRITONBACKEND_ModelConfig")
    def _config(self, model: int, version: int, out: int) -> None:
        check_config_version(version)
        put_word(out, self._documents.new(self.config))

    @export("TRITONBACKEND_ModelSetConfig")
    def _set_config(self, model: int, version: int, message: int) -> None:
        check_config_version(version)
        self.config = completed_config(self.config, self._documents.read(message))
        self.changed_config = True

    @export("TRITONBACKEND_ModelInstanceIsPassive")
    def _is_passive(self, instance: int, out: int) -> None:
        put_bool(out, bool(self._group is not None and self._group.get("passive")))

    @export("TRITONBACKEND_ModelInstanceProfileCount")
    def _profile_count(self, instance: int, out: int) -> None:
        put_half_word(out, len(self._profiles))

    @export("TRITONBACKEND_ModelInstanceProfileName")
    def _profile_name(self, instance: int, index: int, out: int) -> None:
        if index >= len(self._profiles):
            raise InvalidArgumentError(
                f"out of bounds index {index}: instance is configured with {len(self._profiles)}"
                " profiles"
            )
        put_word(out, self._texts.address(f"profile {index}", self._profiles[index]))

    @property
    def _profiles(self) -> list[str]:
        return [] if self._group is None else self._group.get("profile", [])

    @export("TRITONBACKEND_ModelInstanceSecondaryDeviceCount")
    def _secondary_device_count(self, instance: int, out: int) -> None:
        put_half_word(out, len(self._secondary_devices))

    @export("TRITONBACKEND_ModelInstanceSecondaryDeviceProperties")
    def _secondary_device(self, instance: int, index: int, kind: int, device_id: int) -> None:
        if index >= len(self._secondary_devices):
            raise InvalidArgumentError(
                f"out of bounds index {index}: instance is configured with"
                f" {len(self._secondary_devices)} secondary devices"
            )
        device = self._secondary_devices[index]
        put_word(
            kind, self._texts.address(f"device {index}", str(device.get("kind", "KIND_NVDLA")))
        )
        put_word(device_id, int(device.get("device_id", 0)))

    @property
    def _secondary_devices(self) -> list[dict[str, Any]]:
        return [] if self._group is None else self._group.get("secondary_devices", [])


def _instance_group(config: dict[str, Any], instance_name: str) -> dict[str, Any] | None:
    """Returns the group of the configuration to which an instance belongs: its name begins so."""
    groups: list[dict[str, Any]] = config.get("instance_group", [])
    name = instance_name.rpartition("_")[0]
    return next((group for group in groups if group.get("name") == name), None)


_GPU = 2  # TRITONSERVER_MEMORY_GPU


class MemoryManager:
    """Gives plain memory for CPU and for pinned memory, and no memory of GPUs."""

    def __init__(self) -> None:
        # They keep the interpreter's lock: both take less time than to release and to acquire it.
        library = ctypes.PyDLL(None)
        self._malloc, self._free = library.malloc, library.free
        self._malloc.restype = ctypes.c_void_p
        self._malloc.argtypes = [ctypes.c_size_t]
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p]
        self._blocks: set[int] = set()

    def __len__(self) -> int:
        return len(self._blocks)

    @export("TRITONBACKEND_MemoryManagerAllocate")
    def _allocate(self, manager: int, buffer: int, kind: int, device: int, size: int) -> None:
        if kind == _GPU:
            raise UnsupportedError("GPU memory is not supported, only memory of the CPU")
        address = self._malloc(max(1, size))
        if not address:
            raise UnavailableError(f"failed to allocate {size} bytes of memory")
        self._blocks.add(address)
        put_word(buffer, address)

    @export("TRITONBACKEND_MemoryManagerFree")
    def _release(self, manager: int, buffer: int, kind: int, device: int) -> None:
        if buffer not in self._blocks:
            raise InvalidArgumentError(
                f"expected memory that was allocated and not freed, got {buffer:#x}"
            )
        self._blocks.discard(buffer)
        self._free(buffer)


_LEVELS = ("INFO", "WARNING", "ERROR", "VERBOSE")
_Log = Callable[[str, str, str, int], None]


class Logs:
    """The log. `log` gets the level, the text, the file and the line."""

    def __init__(self, log: _Log, is_enabled: Callable[[str], bool]) -> None:
        self._log = log
        self._is_enabled = is_enabled
        self._kept = KeptRecords()
        # Of a word that is not 0 if verbose lines are wanted.
        self.verbose_address = self._kept.words(0)
        self.update()

    def update(self) -> None:
        """Follow a change of the log's settings."""
        put_word(self.verbose_address, self._is_enabled("VERBOSE"))

    @export("TRITONSERVER_LogIsEnabled")
    def _enabled(self, level: int) -> bool:
        return 0 <= level < len(_LEVELS) and self._is_enabled(_LEVELS[level])

    @export("TRITONSERVER_LogMessage")
    def _message(self, level: int, file: bytes | None, line: int, text: bytes | None) -> None:
        name = _LEVELS[level] if 0 <= level < len(_LEVELS) else "INFO"
        if self._is_enabled(name):
            self._log(name, decoded(text), decoded(file), line)


class BackendStatistics:
    """The reports of a backend."""

    def __init__(self) -> None:
        self._kept = KeptRecords()
        self.computed_address = self._kept.words(0, 0)
        self._responses: Handles[None] = Handles("response statistics")

    def computed_ns(self) -> tuple[int, ...]:
        """Returns when the batch's computation began and ended; 0: not reported."""
        return words(self.computed_address, 2)

    def begin_batch(self) -> None:
        """Forget the times of the last batch."""
        put_field(self.computed_address, 0, 0)

    @export(
        "TRITONBACKEND_ModelInstanceReportStatistics",
        "TRITONBACKEND_ModelInstanceReportBatchStatistics",
    )
    def _report(self, *arguments: int) -> None:
        """Take the start and the end of the computation; only the end of the execution follows."""
        start_ns, end_ns, _ = arguments[-3:]
        put_field(self.computed_address, 0, start_ns)
        put_field(self.computed_address, 1, end_ns)

    @export("TRITONBACKEND_ModelInstanceResponseStatisticsNew")
    def _new(self, out: int) -> None:
        put_word(out, self._responses.add(None))

    @export("TRITONBACKEND_ModelInstanceResponseStatisticsDelete")
    def _delete(self, statistics: int) -> None:
        self._responses.pop(statistics)

    @export(
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance",
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory",
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart",
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart",
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd",
        "TRITONBACKEND_ModelInstanceResponseStatisticsSetError",
    )
    def _set(self, statistics: int, value: int) -> None:
        self._responses.get(statistics)

    @export("TRITONBACKEND_ModelInstanceReportResponseStatistics")
    def _report_response(self, statistics: int) -> None:
        self._responses.get(statistics)
