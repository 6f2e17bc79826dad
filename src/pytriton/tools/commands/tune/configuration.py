# SPDX-License-Identifier: Apache-2.0
"""A candidate as a configuration: for the repository API, as config.pbtxt, and as Python. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from pytriton.tools.commands.tune.search import Candidate

_BATCHER = "dynamic_batching"


def present_candidate(config: Mapping[str, Any]) -> Candidate:
    """What a configuration says now."""
    groups = config.get("instance_group") or []
    count = sum(int(group.get("count", 1)) or 1 for group in groups) or 1
    batch = int(config.get("max_batch_size", 0))
    batcher = config.get(_BATCHER)
    if batcher is None:
        batch = min(batch, 1)  # without a batcher, requests run alone
    delay = int((batcher or {}).get("max_queue_delay_microseconds", 0))
    return Candidate(count, batch, delay)


def can_batch(config: Mapping[str, Any]) -> bool:
    """Whether requests of a model may run together, in any configuration."""
    return (
        int(config.get("max_batch_size", 0)) > 0
        and config.get("sequence_batching") is None
        and config.get("ensemble_scheduling") is None
    )


def changed_config(config: Mapping[str, Any], candidate: Candidate) -> str:
    """The configuration with a candidate's values, as JSON for the repository API."""
    changed = copy.deepcopy(dict(config))
    if can_batch(config):
        changed["max_batch_size"] = max(candidate.batch, _least_batch(config, candidate))
        if candidate.batch > 1:
            batcher = dict(changed.get(_BATCHER) or {})
            batcher["max_queue_delay_microseconds"] = candidate.delay_us
            batcher["preferred_batch_size"] = [
                size
                for size in batcher.get("preferred_batch_size") or []
                if int(size) <= candidate.batch
            ]
            changed[_BATCHER] = batcher
        else:
            changed.pop(_BATCHER, None)
    groups = changed.get("instance_group") or [{}]
    first = dict(groups[0])
    first["count"] = candidate.instances
    changed["instance_group"] = [first]
    return json.dumps(changed)


def _least_batch(config: Mapping[str, Any], candidate: Candidate) -> int:
    """Without a batcher, a client may still send batches of the size that it could before."""
    return int(config.get("max_batch_size", 0)) if candidate.batch == 1 else 1


def pbtxt_text(config: Mapping[str, Any], candidate: Candidate) -> str:
    """The lines of config.pbtxt that have to change."""
    lines = []
    if can_batch(config):
        lines.append(f"max_batch_size: {max(candidate.batch, _least_batch(config, candidate))}")
        if candidate.batch > 1:
            delay = candidate.delay_us
            inside = f" max_queue_delay_microseconds: {delay} " if delay else " "
            lines.append(f"dynamic_batching {{{inside}}}")
        else:
            lines.append("# no dynamic_batching: requests run alone")
    kind = ((config.get("instance_group") or [{}])[0]).get("kind") or "KIND_CPU"
    lines.append(f"instance_group [ {{ kind: {kind} count: {candidate.instances} }} ]")
    return "\n".join(lines)


def python_text(config: Mapping[str, Any], candidate: Candidate) -> str:
    """The same for a bound function."""
    several = f"[infer_func] * {candidate.instances}" if candidate.instances > 1 else "infer_func"
    if not can_batch(config):
        return f"triton.bind(..., infer_func={several}, config=ModelConfig(batching=False))"
    if candidate.batch == 1:
        settings = "max_batch_size=1"
    else:
        delay = f"max_queue_delay_microseconds={candidate.delay_us}"
        settings = f"max_batch_size={candidate.batch}, batcher=DynamicBatcher({delay})"
    return f"triton.bind(..., infer_func={several}, config=ModelConfig({settings}))"


def decorator_text(candidate: Candidate) -> str:
    """The same as the decorator of a function."""
    settings = [f"instances={candidate.instances}"]
    if candidate.batch:
        settings = [f"max_batch_size={candidate.batch}", *settings]
    if candidate.batch > 1 and candidate.delay_us:
        settings.insert(1, f"batch_delay_us={candidate.delay_us}")
    return f"@model({', '.join(settings)})"
