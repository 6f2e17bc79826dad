# SPDX-License-Identifier: Apache-2.0
"""The metric families of the machine and the server: memory, CPU, GPUs, clients, its policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytriton.base.nvml import DeviceReading
from pytriton.serving.server.api.gpu_view import ProcessMemory, memory_by_model
from pytriton.serving.server.metrics.exposition import MetricSample, SampleFamily, gauge

# The kind, name and help of each family of GPUs, and the field of `DeviceReading`.
_GPU_FAMILIES = (
    ("gauge", "nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", "utilization"),
    ("gauge", "nv_gpu_memory_total_bytes", "GPU total memory, in bytes", "memory_total_bytes"),
    ("gauge", "nv_gpu_memory_used_bytes", "GPU used memory, in bytes", "memory_used_bytes"),
    ("gauge", "nv_gpu_power_usage", "GPU power usage in watts", "power_usage_w"),
    ("gauge", "nv_gpu_power_limit", "GPU power management limit in watts", "power_limit_w"),
    (
        "counter",
        "nv_energy_consumption",
        "GPU energy consumption in joules since the Triton Server started",
        "energy_j",
    ),
)
_MODEL_MEMORY = "nv_model_gpu_memory_bytes"
_PROCESS_MEMORY = "nv_instance_process_gpu_memory_bytes"
_NAMED_INSTANCES = 8  # of one process; the others are counted


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


@dataclass(frozen=True, slots=True)
class LimitReading:
    """One limit of the server; there may be nothing that tells how near it is."""

    name: str
    used: int | None = None
    most: int | None = None  # None: there is no limit
    refusals: int | None = None  # None: nobody is refused, but has to wait


def limit_families(limits: Iterable[LimitReading]) -> Iterator[SampleFamily]:
    """Yields the families that say how near the server is to its limits."""
    readings = list(limits)
    used = "Use of a limit of the server, in bytes or as a number"
    for name, kind, help_text, field in (
        ("nv_limit_used", "gauge", used, "used"),
        ("nv_limit_max", "gauge", "The most that a limit of the server allows", "most"),
        (
            "nv_limit_refusals_total",
            "counter",
            "Number of requests and clients that a limit of the server has refused",
            "refusals",
        ),
    ):
        values = ((limit.name, getattr(limit, field)) for limit in readings)
        samples = [
            MetricSample(value, {"limit": each}) for each, value in values if value is not None
        ]
        yield SampleFamily(name, kind, help_text, samples)


def certificate_families(
    reloads: int, failures: int, expiries: Mapping[str, float], handshakes: Mapping[str, int]
) -> Iterator[SampleFamily]:
    """Yields the families about encrypted ports.

    `expiries` is by file, and `handshakes` has those that failed by reason, of which there are few.
    """
    for name, help_text, count in (
        ("pytriton_tls_reloads_total", "Number of times that a new certificate was read", reloads),
        (
            "pytriton_tls_reload_failures_total",
            "Number of times that a new certificate could not be used",
            failures,
        ),
    ):
        yield SampleFamily(name, "counter", help_text, [MetricSample(count, {})])
    yield SampleFamily(
        "pytriton_tls_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the certificate in a file expires, in seconds since 1970",
        [MetricSample(expiry_s, {"file": path}) for path, expiry_s in expiries.items()],
    )
    yield SampleFamily(
        "pytriton_tls_handshake_failures_total",
        "counter",
        "Number of clients that did not complete their TLS handshake, by reason",
        [MetricSample(count, {"reason": reason}) for reason, count in handshakes.items()],
    )


def cpu_families(machine: MachineReading) -> Iterable[SampleFamily]:
    """Yields the families of the CPU and the memory."""
    memory = "CPU {} memory (RAM), in bytes"
    yield gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", machine.cpu_utilization)
    yield gauge("nv_cpu_memory_total_bytes", memory.format("total"), machine.memory_total_bytes)
    yield gauge("nv_cpu_memory_used_bytes", memory.format("used"), machine.memory_used_bytes)


def gpu_families(gpus: Sequence[DeviceReading]) -> Iterable[SampleFamily]:
    """Yields the families of GPUs; what a device does not tell has no value."""
    for kind, name, help_text, field in _GPU_FAMILIES:
        values = ((gpu.uuid, getattr(gpu, field)) for gpu in gpus)
        samples = [
            MetricSample(value, {"gpu_uuid": uuid}) for uuid, value in values if value is not None
        ]
        yield SampleFamily(name, kind, help_text, samples)


def gpu_process_families(processes: Sequence[ProcessMemory]) -> Iterable[SampleFamily]:
    """Yields the memory on GPUs by model, and by process, which is there once."""
    models = []
    for (namespace, name, version), devices in memory_by_model(processes).items():
        labels = {"model": name, "version": str(version)}
        labels |= {"namespace": namespace} if namespace else {}
        models += [
            MetricSample(used, {**labels, "gpu_uuid": uuid}) for uuid, used in devices.items()
        ]
    yield SampleFamily(
        _MODEL_MEMORY,
        "gauge",
        "GPU memory of the processes that run instances per-model, in bytes; a process with "
        "instances of several models counts for each of them",
        models,
    )
    samples = []
    for process in processes:
        named = [*process.instances[:_NAMED_INSTANCES]]
        if len(process.instances) > len(named):
            named.append(f"{len(process.instances) - len(named)} more")
        labels = {"gpu_uuid": process.gpu_uuid, "instances": ",".join(named)}
        samples.append(MetricSample(process.used_bytes, {**labels, "pid": str(process.pid)}))
    yield SampleFamily(
        _PROCESS_MEMORY,
        "gauge",
        "GPU memory of a process that runs instances, in bytes, once for all its instances",
        samples,
    )


def access_families(
    refusals: Mapping[str, int], reload_failures: int, *, is_broken: bool
) -> Iterator[SampleFamily]:
    """Yields the families of a policy; refusals are by reason, of which there are few."""
    yield SampleFamily(
        "nv_access_refusal_count",
        "counter",
        "Number of requests that were refused by the policy, by reason",
        [MetricSample(count, {"reason": reason}) for reason, count in sorted(refusals.items())],
    )
    yield SampleFamily(
        "nv_access_policy_failure_count",
        "counter",
        "Number of changes of the policy that could not be read",
        [MetricSample(reload_failures, {})],
    )
    yield gauge(
        "nv_access_policy_outdated",
        "Whether the files of the policy cannot be read, so that the former one is in force",
        int(is_broken),
    )
