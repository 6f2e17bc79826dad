# SPDX-License-Identifier: Apache-2.0
"""The JSON documents of the page: models, cluster, server, settings, and samples over time.

All but the samples are pure functions from records to plain values. Samples are the numbers of all
models and of the machine, taken when a page asks for them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytriton.protocol.json_text import dump_json
from pytriton.serving.engine.model_state import VersionState
from pytriton.serving.engine.stats import FailureReason
from pytriton.serving.server.api.documents import TRITON_VERSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pytriton.base.model_spec import ModelTensor
    from pytriton.runtime.executor.remote.starter import ClusterStatus
    from pytriton.runtime.transport.control import Started
    from pytriton.serving.engine.client import IndexEntry
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.server.api.cluster_view import ClusterView, InstanceRow
    from pytriton.serving.server.metrics.machine import DeviceReading, MachineReading
    from pytriton.serving.server.options.endpoints import EndpointOptions
    from pytriton.serving.server.options.server_options import ServerOptions

    ReadCluster = Callable[[], ClusterStatus | None]
    ReadMachine = Callable[[], Awaitable[tuple[MachineReading | None, Sequence[DeviceReading]]]]

READY = VersionState.READY.value
MIN_INTERVAL_S = 0.9
MAX_HISTORY_BYTES = 1 << 20
MAX_HISTORY_COUNT = 150  # five minutes of a page that asks every two seconds
_MODELS_AT_ONCE = 32  # as for /metrics: then requests have their turn


def model_entry(entry: IndexEntry, model: ManagedModel | None) -> dict[str, Any]:
    """Returns the entry of a model version; the model is None if it is not served, or secret."""
    document: dict[str, Any] = {
        "name": entry.name,
        "version": entry.version,
        "state": entry.state,
        "reason": entry.reason,
    }
    if entry.namespace:
        document["namespace"] = entry.namespace
    if model is not None:
        spec = model.spec
        document |= {
            "is_bound": model.is_bound,
            "platform": spec.platform,
            "max_batch_size": spec.max_batch_size,
            "decoupled": spec.decoupled,
            "is_sequence": spec.sequence is not None,
            "inputs": [_tensor(each) for each in spec.inputs.values()],
            "outputs": [_tensor(each) for each in spec.outputs.values()],
        }
    return document


def _tensor(spec: ModelTensor) -> dict[str, Any]:
    return {
        "name": spec.name,
        "datatype": spec.dtype.name,
        "shape": list(spec.shape),
        "optional": spec.optional,
    }


def cluster_document(view: ClusterView) -> dict[str, Any]:
    """Returns what the page shows of a cluster: its nodes, and all instances of the server."""
    status = view.status
    return {
        "is_connected": status.is_connected,
        "problem": status.problem,
        "unreachable_s": status.unreachable_s,
        "address": status.address,
        "launcher_restarts": status.launcher_restarts,
        "nodes": [
            {
                "name": node.name,
                "total": node.total,
                "available": node.available,
                "processes": node.actor_count,
            }
            for node in view.nodes
        ],
        "instances": [_instance(row) for row in view.instances],
    }


def _instance(row: InstanceRow) -> dict[str, Any]:
    document = {
        "model": row.model.name,
        "version": str(row.model.version),
        "name": row.name,
        "node": row.node,
        "pid": row.pid,
        "state": row.state,
    }
    return document | {"namespace": row.model.namespace} if row.model.namespace else document


def server_document(
    options: ServerOptions, ports: Started, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the facts about the server that the page shows to everybody, and further ones."""
    addresses = {
        "http": _address(options.http, ports.http_port),
        "grpc": _address(options.grpc, ports.grpc_port),
        "metrics": _address(options.metrics, ports.metrics_port),
    }
    return {
        "id": options.id,
        "protocol_version": TRITON_VERSION,
        "addresses": {name: address for name, address in addresses.items() if address["port"]},
        "can_load": can_load(options),
        **facts,
    }


def _address(endpoint: EndpointOptions, port: int) -> dict[str, Any]:
    return {"address": endpoint.address, "port": port}


def can_load(options: ServerOptions) -> bool:
    """Returns whether clients may load and unload models; bound ones are never refused that."""
    repository = options.repository
    return not repository.paths or repository.model_control_mode == "explicit"


def settings_rows(options: ServerOptions) -> list[tuple[str, str]]:
    """Returns settings that tell an operator how the server was started; none is a secret."""
    return [(name, str(value)) for name, value in _settings(options)]


def _settings(options: ServerOptions) -> Iterator[tuple[str, object]]:
    repository, limits = options.repository, options.limits
    for path in repository.paths:
        yield "model-repository", path
    if repository.paths:
        yield "model-control-mode", repository.model_control_mode
        yield "load-model", _listed(repository.load_models)
    yield "http-restricted-api", _listed(_restricted(options))
    yield "frontend-processes", options.frontend_processes
    yield "http-max-input-size", limits.http_max_input_bytes
    yield "allow-client-shm", _yes_or_no(options.allow_client_shared_memory)
    yield "response cache, bytes", options.cache_bytes or "none"
    yield "rate-limit", "execution_count" if repository.rate_limit else "off"
    yield "strict-readiness", _yes_or_no(options.strict_readiness)
    yield "exit-timeout-secs", options.exit_timeout_s
    yield "log-file", options.log.file or "standard streams"
    yield "log-verbose", options.log.verbose
    yield "trace-config", _listed(options.trace_settings)
    yield "grpc-use-ssl", _yes_or_no(options.grpc_tls is not None)


def _restricted(options: ServerOptions) -> Iterator[str]:
    for group in options.http_restricted:
        yield f"{','.join(group.apis)} with the header {group.header}"


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(texts) or "none"


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


class SampleHistory:
    """The last samples, as JSON texts, in a bounded number of bytes."""

    def __init__(
        self, max_bytes: int = MAX_HISTORY_BYTES, max_count: int = MAX_HISTORY_COUNT
    ) -> None:
        self._samples: deque[bytes] = deque()
        self._bytes = 0
        self._max_bytes = max_bytes
        self._max_count = max_count
        self.last_number = 0

    def add(self, sample: bytes) -> None:
        """Keep a sample, which gets the next number; the oldest ones are dropped."""
        self.last_number += 1
        self._samples.append(sample)
        self._bytes += len(sample)
        while len(self._samples) > 1 and (
            self._bytes > self._max_bytes or len(self._samples) > self._max_count
        ):
            self._bytes -= len(self._samples.popleft())

    def after(self, number: int) -> bytes:
        """Returns the samples after the one with this number as a JSON array.

        A number that no sample has had yet is one of an earlier server: all are returned.
        """
        first = number if 0 <= number <= self.last_number else 0
        count = min(self.last_number - first, len(self._samples))
        new = list(self._samples)[len(self._samples) - count :]
        return b"[%b]" % b",".join(new)


class Sampler:
    """Takes samples when somebody asks, at most about one a second."""

    def __init__(
        self,
        engine: Engine,
        read_machine: ReadMachine,
        cluster: ReadCluster,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.history = SampleHistory()
        self._engine = engine
        self._read_machine = read_machine
        self._cluster = cluster
        self._clock = clock
        self._taken_s = -MIN_INTERVAL_S
        self._taking: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Take a sample, unless the last one is new; callers at the same time share it."""
        if self._taking is None:
            if self._clock() - self._taken_s < MIN_INTERVAL_S:
                return
            self._taking = asyncio.get_running_loop().create_task(self._take())
        await asyncio.shield(self._taking)

    async def _take(self) -> None:
        try:
            machine = await self._machine()
            models = [model for model in self._engine.models() if _is_shown(model)]
            entries = []
            for first in range(0, len(models), _MODELS_AT_ONCE):
                entries += [_entry(model) for model in models[first : first + _MODELS_AT_ONCE]]
                await asyncio.sleep(0)
            sample = {"time": time.time(), "machine": machine, "models": entries}
            refused = self._engine.failures.unknown_refusals
            if refused:  # requests that reached no model
                sample["refused"] = refused
            if self._cluster() is not None:
                sample["has_cluster"] = True
            self._taken_s = self._clock()
            self.history.add(dump_json(sample))
        finally:
            self._taking = None

    async def _machine(self) -> dict[str, Any]:
        reading, gpus = await self._read_machine()
        machine: dict[str, Any] = {"server_memory": _resident_bytes()}
        if reading is not None:
            machine["cpu"] = reading.cpu_utilization
            machine["memory_total"] = reading.memory_total_bytes
            machine["memory_used"] = reading.memory_used_bytes
        machine["gpus"] = [
            {
                "utilization": gpu.utilization,
                "memory_used": gpu.memory_used_bytes,
                "memory_total": gpu.memory_total_bytes,
            }
            for gpu in gpus
        ]
        return machine


def _is_shown(model: ManagedModel) -> bool:
    return model.state in (VersionState.READY, VersionState.UNLOADING) or bool(model.instances)


def _entry(model: ManagedModel) -> dict[str, Any]:
    """Returns the numbers of one model since it was loaded, as small as they can be."""
    spec, statistics = model.spec, model.statistics
    durations = statistics.inference_durations()
    entry: dict[str, Any] = {
        "name": spec.name,
        "version": str(spec.version),
        "ok": durations.success.count,
        "failed": sum(statistics.failures.values()),
        "cancelled": statistics.failures[FailureReason.CANCELED],
        "refused": statistics.refused,
        "inferences": statistics.inference_count,
        "executions": statistics.execution_count,
        "pending": statistics.pending_count,
        "running": model.running_count,
        "instances": len(model.instances),
        "missing": model.missing_instances,
        "request_s": durations.success.ns / 1e9,
        "queue_s": durations.queue.ns / 1e9,
        "batches": statistics.batch_sizes(),
    }
    if spec.namespace:
        entry["namespace"] = spec.namespace
    latencies = statistics.latencies
    if latencies is not None and latencies.request is not None:
        entry["bounds"] = latencies.request.bounds
        entry["counts"] = latencies.request.counts
    return entry


def _resident_bytes() -> int:
    """Returns the memory of the server's process; 0 if the system does not tell."""
    import psutil  # noqa: PLC0415  takes 2 MiB, which only a server with viewers needs

    try:
        return int(psutil.Process(os.getpid()).memory_info().rss)
    except psutil.Error:
        return 0
