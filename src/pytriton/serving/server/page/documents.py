# SPDX-License-Identifier: Apache-2.0
"""The JSON documents of the page; pure functions from records to plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytriton.serving.engine.model_state import ModelState
from pytriton.serving.server.api.documents import TRITON_VERSION

if TYPE_CHECKING:
    from pytriton.base.model_spec import ModelTensor
    from pytriton.runtime.transport.control import Started
    from pytriton.serving.engine.client import IndexEntry
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.cluster_view import ClusterView, InstanceRow
    from pytriton.serving.server.options.endpoints import EndpointOptions
    from pytriton.serving.server.options.server_options import ServerOptions

READY = ModelState.READY.value


def model_entry(entry: IndexEntry, model: ServedModel | None) -> dict[str, Any]:
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
