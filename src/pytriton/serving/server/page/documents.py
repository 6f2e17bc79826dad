# SPDX-License-Identifier: Apache-2.0
"""The JSON documents of the page: models, cluster, server, settings, and the numbers of now.

All but the last are pure functions from records to plain values. The numbers of all models and of
the machine are read when a page asks for them; those of the past are in `history`. Everybody who
may read metrics may know how many requests fail, and with which kind of error. Messages, places and
contents of failures may be secret, and are for those who have the page's token.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pytriton.base.dtypes import BY_NAME, BYTES
from pytriton.base.errors import InvalidArgumentError, NotFoundError
from pytriton.protocol.json_text import dump_json
from pytriton.serving.engine.model_state import VersionState
from pytriton.serving.engine.stats import FailureReason
from pytriton.serving.server.api.documents import TRITON_VERSION
from pytriton.serving.server.api.gpu_view import key_of, memory_by_model, process_memory
from pytriton.serving.server.page.history import is_shown, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pytriton.base.model_spec import ModelTensor
    from pytriton.base.nvml import DeviceReading
    from pytriton.runtime.executor.remote.starter import ClusterStatus
    from pytriton.runtime.transport.control import Started
    from pytriton.serving.engine.client import IndexEntry
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.server.api.cluster_view import ClusterView, InstanceRow
    from pytriton.serving.server.metrics.machine import MachineReading
    from pytriton.serving.server.options.endpoints import EndpointOptions
    from pytriton.serving.server.options.server_options import ServerOptions, TlsOptions

    ReadCluster = Callable[[], ClusterStatus | None]
    ReadMachine = Callable[[], Awaitable[tuple[MachineReading | None, Sequence[DeviceReading]]]]

    from pytriton.base.failure_records import FailureExample
    from pytriton.serving.engine.failures import FailureBook, KeptInput, ListedGroup


MAX_VALUES = 4096  # of one input; more than that nobody reads


class KeepInputs(msgspec.Struct):
    """What a page sends to keep the inputs of the next failure of a group, or to forget them."""

    group: int
    keep: bool = True


_decoder = msgspec.json.Decoder(KeepInputs)


def failures_document(book: FailureBook, *, has_details: bool) -> dict[str, Any]:
    """Returns all groups, that with the newest failure first."""
    groups = [_group(each, has_details=has_details) for each in book.listed()]
    return {"has_details": has_details, "groups": groups}


def _group(group: ListedGroup, *, has_details: bool) -> dict[str, Any]:
    record = group.record
    document: dict[str, Any] = {
        "group": group.number,
        "model": record.model,
        "version": str(record.version) if record.version else "",
        "kind": record.kind,
        "reason": record.reason,
        "count": record.count,
        "first": record.first_s,
        "last": record.last_s,
    }
    if has_details:
        document["place"] = record.place
        document["example"] = _example(record.example)
        document["awaits_inputs"] = group.awaits_inputs
        document["has_inputs"] = group.kept is not None
    return document


def _example(example: FailureExample) -> dict[str, Any]:
    return {
        "time": example.time_s,
        "model": example.model,
        "id": example.request_id,
        "message": example.message,
        "traceback": example.traceback,
        "inputs": [msgspec.structs.asdict(each) for each in example.inputs],
        "more_inputs": example.more_inputs,
    }


def change_keeping(book: FailureBook, body: bytes) -> dict[str, Any]:
    """Keep the inputs of the next failure of a group, or forget them.

    Raises:
        ServerError: The request is malformed, or the group is gone.
    """
    try:
        asked = _decoder.decode(body)
    except msgspec.DecodeError as error:
        text = f'expected a document such as {{"group": 1, "keep": true}}, got: {error}'
        raise InvalidArgumentError(text) from error
    group = _find(book, asked.group)
    book.keep_inputs(group, is_wanted=asked.keep)
    return {"group": group.number, "awaits_inputs": group.awaits_inputs}


def inputs_document(book: FailureBook, number: int) -> dict[str, Any]:
    """Returns the inputs that were kept of a request that failed, as clients would send them.

    Raises:
        ServerError: The group is gone, or has no inputs.
    """
    kept = _find(book, number).kept
    if kept is None:
        raise NotFoundError(f"group {number} of failures has no inputs of a request")
    return {
        "time": kept.time_s,
        "id": kept.request_id,
        "inputs": [_kept_tensor(each) for each in kept.inputs],
    }


def _find(book: FailureBook, number: int) -> ListedGroup:
    group = book.find(number)
    if group is None:
        raise NotFoundError(f"there is no group {number} of failures, or not any more")
    return group


def _kept_tensor(kept: KeptInput) -> dict[str, Any]:
    document = msgspec.structs.asdict(kept.described)
    values, is_cut = _values(kept)
    return {**document, "data": values, "is_cut": is_cut or kept.is_cut}


def _values(kept: KeptInput) -> tuple[list[Any], bool]:
    """Returns the first values of an input, and whether there are more."""
    dtype = BY_NAME[kept.described.datatype]
    if dtype is BYTES:
        values: list[Any] = [each.decode("utf-8", "backslashreplace") for each in _strings(kept)]
    else:
        whole = len(kept.data) // dtype.itemsize * dtype.itemsize
        array = np.frombuffer(kept.data[:whole], dtype.numpy)
        if array.dtype.kind not in "biu":
            array = array.astype(np.float64)  # half precision has no values of its own in Python
        values = [_number(each) for each in array.tolist()]
    return values[:MAX_VALUES], len(values) > MAX_VALUES


def _number(value: float) -> float | str:
    """Returns a value as JSON can have it."""
    return value if math.isfinite(value) else str(value)


def _strings(kept: KeptInput) -> Iterator[bytes]:
    """Yields the elements of a BYTES tensor; the last one may be cut."""
    data, at = kept.data, 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        yield data[at + 4 : end]
        at = end


READY = VersionState.READY.value
MIN_INTERVAL_S = 0.9
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
            "description": spec.documentation.text,
            "platform": spec.platform,
            "max_batch_size": spec.max_batch_size,
            "decoupled": spec.decoupled,
            "is_sequence": spec.sequence is not None,
            "examples": spec.documentation.examples,
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
        "http": _address("http", options.http, ports.http_port, options.tls),
        "grpc": _address("grpc", options.grpc, ports.grpc_port, options.grpc_tls),
        "metrics": _address("http", options.metrics, ports.metrics_port, options.tls),
    }
    return {
        "id": options.id,
        "protocol_version": TRITON_VERSION,
        "addresses": {name: address for name, address in addresses.items() if address["port"]},
        "can_load": can_load(options),
        **facts,
    }


def _address(
    scheme: str, endpoint: EndpointOptions, port: int, tls: TlsOptions | None
) -> dict[str, Any]:
    scheme = scheme if tls is None else f"{scheme}s"
    return {"address": endpoint.address, "port": port, "scheme": scheme}


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
    yield "auth-config", options.access.config or "none"
    yield "trusted-proxies", _listed(options.trusted_proxies)
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
    yield "tls-cert", "none" if options.tls is None else options.tls.server_cert


def _restricted(options: ServerOptions) -> Iterator[str]:
    for group in options.http_restricted:
        yield f"{','.join(group.apis)} with the header {group.header}"


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(texts) or "none"


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


class CurrentNumbers:
    """Reads the machine and all models when somebody asks, at most about once a second."""

    def __init__(
        self,
        engine: Engine,
        read_machine: ReadMachine,
        cluster: ReadCluster,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._read_machine = read_machine
        self._cluster = cluster
        self._clock = clock
        self._text = b""
        self._taken_s = -MIN_INTERVAL_S
        self._taking: asyncio.Task[None] | None = None

    async def read(self) -> bytes:
        """Returns a JSON text, which callers at the same time share."""
        if self._taking is None:
            if self._clock() - self._taken_s < MIN_INTERVAL_S:
                return self._text
            self._taking = asyncio.get_running_loop().create_task(self._take())
        await asyncio.shield(self._taking)
        return self._text

    async def _take(self) -> None:
        try:
            reading, gpus = await self._read_machine()
            machine = _machine_document(reading, gpus)
            models = [model for model in self._engine.models() if is_shown(model)]
            memory = memory_by_model(process_memory(models, gpus))
            entries = []
            for first in range(0, len(models), _MODELS_AT_ONCE):
                some = models[first : first + _MODELS_AT_ONCE]
                entries += [_entry(model, memory.get(key_of(model), {})) for model in some]
                await asyncio.sleep(0)
            numbers = {"time": time.time(), "machine": machine, "models": entries}
            refused = self._engine.failures.unknown_refusals
            if refused:  # requests that reached no model
                numbers["refused"] = refused
            if self._cluster() is not None:
                numbers["has_cluster"] = True
            self._taken_s = self._clock()
            self._text = dump_json(numbers)
        finally:
            self._taking = None


def _machine_document(
    reading: MachineReading | None, gpus: Sequence[DeviceReading]
) -> dict[str, Any]:
    machine: dict[str, Any] = {"server_memory": _server_memory()}
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


def _entry(model: ManagedModel, gpu_memory: Mapping[str, int]) -> dict[str, Any]:
    """Returns the numbers of one model since it was loaded, as small as they can be."""
    spec, statistics = model.spec, model.statistics
    entry: dict[str, Any] = {
        "name": spec.name,
        "version": str(spec.version),
        "ok": statistics.success_count,
        "failed": statistics.fail.count,
        "cancelled": statistics.failures[FailureReason.CANCELED],
        "refused": statistics.refused,
        "pending": statistics.pending_count,
        "running": model.running_count,
        "instances": len(model.instances),
        "missing": model.missing_instances,
    }
    if spec.namespace:
        entry["namespace"] = spec.namespace
    if gpu_memory:
        entry["gpu_memory"] = sum(gpu_memory.values())
    costs = statistics.costs
    if costs.to_gpu_bytes or costs.to_host_bytes:
        entry["to_gpu"], entry["to_host"] = costs.to_gpu_bytes, costs.to_host_bytes
    return entry


def _server_memory() -> int:
    """Returns the memory of the server's process; 0 if the system does not tell."""
    memory_bytes = resident_bytes()
    if memory_bytes is not None:
        return memory_bytes
    import psutil  # noqa: PLC0415  takes 2 MiB, which only a server with viewers needs

    try:
        return int(psutil.Process(os.getpid()).memory_info().rss)
    except psutil.Error:
        return 0
