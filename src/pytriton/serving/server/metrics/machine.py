# SPDX-License-Identifier: Apache-2.0
"""The metric families of the machine: memory pool, CPU and memory, GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytriton.serving.server.metrics.exposition import MetricSample, Number, SampleFamily, gauge
from pytriton.serving.server.metrics.gpus import DeviceReading


@dataclass(frozen=True, slots=True)
class MachineReading:
    """CPU utilization and memory of the whole machine."""

    cpu_utilization: float  # from 0.0 to 1.0, since the previous reading
    memory_total_bytes: int
    memory_used_bytes: int


def read_machine() -> MachineReading:
    """Read the operating system's numbers; the first utilization in a process is 0."""
    import psutil  # noqa: PLC0415  takes 2 MiB, which only a server with scrapes needs

    memory = psutil.virtual_memory()
    return MachineReading(
        cpu_utilization=psutil.cpu_percent() / 100,
        memory_total_bytes=memory.total,
        memory_used_bytes=memory.total - memory.available,
    )


def pool_families(total_bytes: int) -> Iterable[SampleFamily]:
    """Yields the families of the pool of pinned memory.

    The pool is never used: tensors are in memory shared with the instances.
    """
    pool = "Pinned memory pool {} memory size, in bytes"
    yield gauge("nv_pinned_memory_pool_total_bytes", pool.format("total"), total_bytes)
    yield gauge("nv_pinned_memory_pool_used_bytes", pool.format("used"), 0)


def accepting_families(pauses: int, *, is_paused: bool) -> Iterator[SampleFamily]:
    """Yields the families about new clients, which wait while file descriptors are short."""
    yield SampleFamily(
        "nv_accept_pause_count",
        "counter",
        "Number of times that new clients had to wait for file descriptors",
        [MetricSample(pauses, {})],
    )
    yield gauge(
        "nv_accept_paused", "Whether new clients have to wait for file descriptors", int(is_paused)
    )


def cpu_families(machine: MachineReading) -> Iterable[SampleFamily]:
    """Yields the families of the CPU and the memory."""
    memory = "CPU {} memory (RAM), in bytes"
    yield gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", machine.cpu_utilization)
    yield gauge("nv_cpu_memory_total_bytes", memory.format("total"), machine.memory_total_bytes)
    yield gauge("nv_cpu_memory_used_bytes", memory.format("used"), machine.memory_used_bytes)


def gpu_families(gpus: Sequence[DeviceReading]) -> Iterable[SampleFamily]:
    """Yields the families of GPUs; what a device does not tell has no value."""

    def family(
        kind: str, name: str, help_text: str, values: Iterable[Number | None]
    ) -> SampleFamily:
        samples = [
            MetricSample(value, {"gpu_uuid": gpu.uuid})
            for gpu, value in zip(gpus, values, strict=True)
            if value is not None
        ]
        return SampleFamily(name, kind, help_text, samples)

    yield family(
        "gauge",
        "nv_gpu_utilization",
        "GPU utilization rate [0.0 - 1.0)",
        [gpu.utilization for gpu in gpus],
    )
    yield family(
        "gauge",
        "nv_gpu_memory_total_bytes",
        "GPU total memory, in bytes",
        [gpu.memory_total_bytes for gpu in gpus],
    )
    yield family(
        "gauge",
        "nv_gpu_memory_used_bytes",
        "GPU used memory, in bytes",
        [gpu.memory_used_bytes for gpu in gpus],
    )
    yield family(
        "gauge",
        "nv_gpu_power_usage",
        "GPU power usage in watts",
        [gpu.power_usage_w for gpu in gpus],
    )
    yield family(
        "gauge",
        "nv_gpu_power_limit",
        "GPU power management limit in watts",
        [gpu.power_limit_w for gpu in gpus],
    )
    yield family(
        "counter",
        "nv_energy_consumption",
        "GPU energy consumption in joules since the Triton Server started",
        [gpu.energy_j for gpu in gpus],
    )
