# SPDX-License-Identifier: Apache-2.0
"""What a load test has to know of a model, read from its metadata and its configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.base import dtypes
from pytriton.tools.perf.errors import PerfError


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredTensor:
    """An input or output, without the axis of the batch.

    Attributes:
        dtype: Datatype.
        shape: Dimensions; -1 for those that vary.
        is_optional: Whether requests may leave it out.
        is_shape_tensor: Whether it is not batched.
    """

    name: str
    dtype: dtypes.DataType
    shape: tuple[int, ...]
    is_optional: bool = False
    is_shape_tensor: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model as a load test sees it.

    Attributes:
        version: The version asked for; empty for the latest.
        composing: Name and version (empty: latest) of the models of an ensemble's steps.
    """

    name: str
    version: str
    inputs: tuple[MeasuredTensor, ...]
    outputs: tuple[MeasuredTensor, ...]
    max_batch_size: int = 0
    is_decoupled: bool = False
    has_sequences: bool = False
    has_cache: bool = False
    composing: tuple[tuple[str, str], ...] = ()

    @property
    def is_ensemble(self) -> bool:
        return bool(self.composing)


def describe(
    metadata: Mapping[str, Any], config: Mapping[str, Any], version: str = ""
) -> MeasuredModel:
    """Read a model's metadata and its configuration, which is empty if the server has none to give.

    Raises:
        PerfError: They do not fit each other.
    """
    name = str(metadata.get("name") or config.get("name", ""))
    batch = int(config.get("max_batch_size", 0))
    policy = config.get("model_transaction_policy") or {}
    steps = (config.get("ensemble_scheduling") or {}).get("step") or []
    return MeasuredModel(
        name=name,
        version=version,
        inputs=_tensors(name, "input", metadata, config, batch),
        outputs=_tensors(name, "output", metadata, config, batch),
        max_batch_size=batch,
        is_decoupled=bool(policy.get("decoupled")),
        has_sequences="sequence_batching" in config and config["sequence_batching"] is not None,
        has_cache=bool((config.get("response_cache") or {}).get("enable")),
        composing=_composing(steps),
    )


def _composing(steps: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    found: dict[tuple[str, str], None] = {}
    for step in steps:
        version = int(step.get("model_version", -1))
        found[str(step["model_name"]), "" if version < 0 else str(version)] = None
    return tuple(found)


def _tensors(
    model: str, kind: str, metadata: Mapping[str, Any], config: Mapping[str, Any], batch: int
) -> tuple[MeasuredTensor, ...]:
    configured = {str(each["name"]): each for each in config.get(kind) or []}
    described = {str(each["name"]): each for each in metadata.get(f"{kind}s") or []}
    for name in configured:
        if name not in described:
            raise PerfError(
                f"no metadata found for {kind} tensor {name} of model {model}, which its "
                "configuration has"
            )
    return tuple(
        _tensor(name, each, configured.get(name, {}), batch) for name, each in described.items()
    )


def _tensor(
    name: str, metadata: Mapping[str, Any], config: Mapping[str, Any], batch: int
) -> MeasuredTensor:
    datatype = str(metadata["datatype"])
    if datatype not in dtypes.BY_NAME:
        raise PerfError(f"tensor {name} has the datatype {datatype}, which is not known here")
    shape = tuple(int(size) for size in metadata.get("shape") or ())
    is_shape_tensor = bool(config.get("is_shape_tensor"))
    if batch > 0 and not is_shape_tensor:
        shape = shape[1:]
    return MeasuredTensor(
        name, dtypes.BY_NAME[datatype], shape, bool(config.get("optional")), is_shape_tensor
    )
