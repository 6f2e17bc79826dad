# SPDX-License-Identifier: Apache-2.0
"""Configurations of ensembles and of the models of their steps, in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.base.protos import model_config_pb2
from pytriton.serving.engine.config import normalise_config

FP32 = "TYPE_FP32"


def model_config(
    name: str,
    inputs: Sequence[str] = ("IN",),
    outputs: Sequence[str] = ("OUT",),
    *,
    max_batch_size: int = 8,
    data_type: str = FP32,
    dims: Sequence[int] = (4,),
    optional: Sequence[str] = (),
    decoupled: bool = False,
) -> Any:
    """Returns the configuration of a model whose tensors have one type and shape."""
    config = model_config_pb2.ModelConfig(
        name=name, backend="python", max_batch_size=max_batch_size
    )
    _add_tensors(config, inputs, outputs, data_type, dims, optional)
    config.model_transaction_policy.decoupled = decoupled
    return normalise_config(config)


def step(
    model: str, inputs: Mapping[str, str], outputs: Mapping[str, str], version: int = -1
) -> Any:
    """Returns a step; `inputs` and `outputs` map the model's names to the ensemble's."""
    return model_config_pb2.ModelEnsembling.Step(
        model_name=model, model_version=version, input_map=inputs, output_map=outputs
    )


def ensemble_config(
    *steps: Any,
    name: str = "e",
    inputs: Sequence[str] = ("X",),
    outputs: Sequence[str] = ("Y",),
    max_batch_size: int = 8,
    data_type: str = FP32,
    dims: Sequence[int] = (4,),
    optional: Sequence[str] = (),
    max_inflight_requests: int = 0,
    **fields: Any,
) -> Any:
    """Returns the configuration of an ensemble whose tensors have one type and shape."""
    config = model_config_pb2.ModelConfig(
        name=name, platform="ensemble", max_batch_size=max_batch_size, **fields
    )
    _add_tensors(config, inputs, outputs, data_type, dims, optional)
    config.ensemble_scheduling.SetInParent()
    config.ensemble_scheduling.step.extend(steps)
    config.ensemble_scheduling.max_inflight_requests = max_inflight_requests
    return normalise_config(config)


def _add_tensors(
    config: Any,
    inputs: Sequence[str],
    outputs: Sequence[str],
    data_type: str,
    dims: Sequence[int],
    optional: Sequence[str],
) -> None:
    for each in inputs:
        config.input.add(name=each, data_type=data_type, dims=dims, optional=each in optional)
    for each in outputs:
        config.output.add(name=each, data_type=data_type, dims=dims)
