# SPDX-License-Identifier: Apache-2.0
"""TRITONBACKEND_Backend, _Model and _ModelInstance: what the functions of a backend get to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.config_changes import completed_config
from pytriton.runtime.native_backend.memory import (
    Kept,
    Texts,
    put_bool,
    put_half_word,
    put_word,
    word,
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
from pytriton.runtime.native_backend.server_objects import INSTANCE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.native_backend.server_objects import Documents
    from pytriton.runtime.transport.frames import Initialize

_FILESYSTEM = 0  # TRITONBACKEND_ARTIFACT_FILESYSTEM
_BLOCKING = 0  # TRITONBACKEND_EXECUTION_BLOCKING
_CONFIG_VERSION = 1


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
        self._kept = kept = Kept()
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
        self._check_version(version)
        put_word(out, self._documents.new(self.config))

    @export("TRITONBACKEND_ModelSetConfig")
    def _set_config(self, model: int, version: int, message: int) -> None:
        self._check_version(version)
        self.config = completed_config(self.config, self._documents.read(message))
        self.changed_config = True

    def _check_version(self, version: int) -> None:
        if version != _CONFIG_VERSION:
            raise InvalidArgumentError(
                f"model configuration version {version} not supported, supported versions are:"
                f" {_CONFIG_VERSION}"
            )

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
