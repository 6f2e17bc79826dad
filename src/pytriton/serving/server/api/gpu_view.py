# SPDX-License-Identifier: Apache-2.0
"""Whose memory is on the GPUs: what NVML tells of processes, joined with those of instances.

NVML knows processes, not instances. The memory of a process that runs several instances cannot be
told apart, so it counts once for the process, and once for each model that has instances there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.base.nvml import DeviceReading
    from pytriton.serving.engine.served_model import ManagedModel

ModelKey = tuple[str, str, int]  # namespace, name, version
MemoryByModel = dict[ModelKey, dict[str, int]]  # bytes by the UUID of a device


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory that a process with instances has on a device."""

    pid: int
    gpu_uuid: str
    used_bytes: int
    instances: tuple[str, ...]  # the names of those that run in it
    models: tuple[ModelKey, ...]  # each once


def process_memory(
    models: Iterable[ManagedModel], gpus: Sequence[DeviceReading]
) -> list[ProcessMemory]:
    """Returns the memory of all processes of this machine that run instances, by device."""
    if not any(gpu.process_bytes for gpu in gpus):
        return []
    names: dict[int, list[str]] = {}
    keys: dict[int, dict[ModelKey, None]] = {}
    for model in models:
        for instance in model.instances:
            pid = getattr(instance, "pid", 0)
            if pid and not getattr(instance, "node", ""):  # else the number is of another machine
                names.setdefault(pid, []).append(instance.name)
                keys.setdefault(pid, {})[key_of(model)] = None
    return [
        ProcessMemory(pid, gpu.uuid, used_bytes, tuple(names[pid]), tuple(keys[pid]))
        for gpu in gpus
        for pid, used_bytes in sorted(gpu.process_bytes.items())
        if pid in names
    ]


def memory_by_model(processes: Iterable[ProcessMemory]) -> MemoryByModel:
    """Returns the memory of the processes of each model, by device."""
    memory: MemoryByModel = {}
    for process in processes:
        for key in process.models:
            devices = memory.setdefault(key, {})
            devices[process.gpu_uuid] = devices.get(process.gpu_uuid, 0) + process.used_bytes
    return memory


def key_of(model: ManagedModel) -> ModelKey:
    """Returns what a model version has its memory under."""
    return model.spec.namespace, model.spec.name, model.spec.version
