# SPDX-License-Identifier: Apache-2.0
"""GPUs as NVIDIA's management library tells of them: how busy, how full, and with whose memory.

The driver may take long to answer: `NvmlReader` belongs on a thread of its own. The library knows
every device by its position on the machine; models know those of CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device; None stands for what it does not tell."""

    uuid: str
    utilization: float | None = None  # from 0.0 to 1.0
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_usage_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None  # since the start
    process_bytes: Mapping[int, int] = field(default_factory=dict)  # memory in use by process id


class NvmlReader:
    """Reads devices through the module `pynvml`, which is initialised already.

    If CUDA_VISIBLE_DEVICES is set, only these devices are read.

    Attributes:
        uuids: The devices by the numbers that CUDA has for them in this process.
    """

    def __init__(self, nvml: Any, visible: str | None = None) -> None:
        self._nvml = nvml
        all_handles = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        by_uuid = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in all_handles}
        self._handles = by_uuid
        if visible is not None:
            self._handles = {uuid: by_uuid[uuid] for uuid in _chosen(visible, list(by_uuid))}
        self.uuids: Mapping[int, str] = dict(enumerate(self._handles))
        self._energy_at_start = {
            uuid: self._energy_mj(each) for uuid, each in self._handles.items()
        }

    def read(self) -> list[DeviceReading]:
        """Read all devices."""
        return [self._read_device(uuid, handle) for uuid, handle in self._handles.items()]

    def free_bytes(self) -> dict[int, int]:
        """Returns the free memory of each device that tells it, by the numbers of `uuids`."""
        readings = [
            self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
            for handle in self._handles.values()
        ]
        return {number: each.free for number, each in enumerate(readings) if each is not None}

    def _read_device(self, uuid: str, handle: Any) -> DeviceReading:
        nvml = self._nvml
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        usage_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit_mw = self._ask(nvml.nvmlDeviceGetPowerManagementLimit, handle)
        processes = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        energy_mj, start_mj = self._energy_mj(handle), self._energy_at_start[uuid]
        has_energy = energy_mj is not None and start_mj is not None
        return DeviceReading(
            uuid=uuid,
            utilization=None if rates is None else rates.gpu / 100,
            memory_total_bytes=None if memory is None else memory.total,
            memory_used_bytes=None if memory is None else memory.used,
            power_usage_w=None if usage_mw is None else usage_mw / 1000,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            energy_j=max(0, energy_mj - start_mj) / 1000 if has_energy else None,
            # A device may name a process without telling its memory.
            process_bytes={
                each.pid: each.usedGpuMemory for each in processes if each.usedGpuMemory is not None
            },
        )

    def _energy_mj(self, handle: Any) -> Any:
        return self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption, handle)

    def _ask(self, function: Callable[[Any], Any], handle: Any) -> Any:
        """Returns the answer; None if the device does not support the question."""
        try:
            return function(handle)
        except self._nvml.NVMLError:
            return None


def find_gpus(environment: Mapping[str, str] = os.environ) -> NvmlReader | None:
    """Start to use NVML; returns None if there is no GPU, and says why at verbose log levels."""
    try:
        import pynvml  # noqa: PLC0415  an extra of this package, which only servers with GPUs need
    except ImportError as error:
        logger.debug("GPUs cannot be read: %s; pip install 'pytriton[gpu]' installs it", error)
        return None
    try:
        pynvml.nvmlInit()
        reader = NvmlReader(pynvml, environment.get("CUDA_VISIBLE_DEVICES"))
    except pynvml.NVMLError as error:
        logger.debug("GPUs cannot be read: %s", error)
        return None
    return reader if reader.uuids else None  # all may be hidden


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _chosen(visible: str, uuids: list[str]) -> Iterator[str]:
    """Yields the devices of CUDA_VISIBLE_DEVICES; CUDA sees none from the first unknown one on."""
    for name in visible.split(","):
        uuid = _device(name.strip(), uuids)
        if uuid is None:
            return
        yield uuid


def _device(name: str, uuids: list[str]) -> str | None:
    """Returns the device that CUDA_VISIBLE_DEVICES names by number or by the start of its UUID."""
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else None
    return next((uuid for uuid in uuids if name and uuid.startswith(name)), None)
