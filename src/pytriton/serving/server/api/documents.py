# SPDX-License-Identifier: Apache-2.0
"""The documents that are not inference, as plain values: metadata, statistics, and the index.

Pure functions. A model's configuration is printed by
`pytriton.serving.engine.config`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pytriton.base.model_spec import ModelSpec, ModelTensor
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.engine.served_model import ManagedModel

# The Triton release whose protocol this server speaks; clients show it as the server's version.
TRITON_VERSION = "2.73.0"
# The extensions of Triton that are supported, in Triton's order.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


@functools.cache
def package_version() -> str:
    """Returns the version of this package."""
    from importlib import metadata  # noqa: PLC0415  takes 50 ms, and most servers never need it

    return metadata.version("pytriton")


def server_metadata(server_id: str, extensions: Iterable[str] = EXTENSIONS) -> dict[str, Any]:
    """Make the document of `/v2`, which never changes."""
    return {"name": server_id, "version": TRITON_VERSION, "extensions": list(extensions)}


def model_metadata(spec: ModelSpec, versions: Iterable[int]) -> dict[str, Any]:
    """Make the document of `/v2/models/<model>` for its ready versions, or the requested one."""
    return {
        "name": spec.name,
        "versions": [str(version) for version in versions],
        "platform": spec.platform,
        "inputs": _tensors(spec.inputs),
        "outputs": _tensors(spec.outputs),
    }


def _tensors(specs: dict[str, ModelTensor]) -> list[dict[str, Any]]:
    return [
        {"name": spec.name, "datatype": spec.dtype.name, "shape": list(spec.shape)}
        for spec in specs.values()
    ]


def statistics_of(model: ManagedModel) -> dict[str, Any]:
    """Returns the statistics of a model version in Triton's layout."""
    return {
        "name": model.spec.name,
        "version": str(model.spec.version),
        **model.statistics.snapshot(),
    }


def model_statistics(models: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the document of `/v2/models/stats` and of its variants for one model."""
    # The Python backend reports no use of memory.
    return {"model_stats": [{**model, "memory_usage": []} for model in models]}


def repository_index(entries: Iterable[IndexEntry]) -> bytes:
    """Write the document of `/v2/repository/index`; empty members of an entry are left out."""
    return msgspec.json.encode(list(entries))
