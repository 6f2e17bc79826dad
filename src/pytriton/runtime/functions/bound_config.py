# SPDX-License-Identifier: Apache-2.0
"""The configuration that the arguments of `bind` describe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pytriton.base.openai_routes import as_openai
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.common import DeviceKind
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.model_config.triton_model_config import (
    ResponseCache,
    TensorSpec,
    TritonModelConfig,
)

_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def bound_config(
    name: str,
    version: int,
    instance_count: int,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    config: ModelConfig,
) -> TritonModelConfig:
    """Make the configuration of a bound model, whose name and tensors were checked."""
    optional = [spec.name for spec in outputs if spec.optional]
    if optional:
        raise PyTritonValidationError(
            f"Output tensors cannot be optional. Outputs marked as optional: {optional}."
        )
    return TritonModelConfig(
        model_name=name,
        model_version=version,
        max_batch_size=config.max_batch_size,
        batching=config.batching,
        batcher=config.batcher,
        instance_group={DeviceKind.KIND_CPU: instance_count},
        decoupled=config.decoupled,
        inputs=_named(inputs, "INPUT"),
        outputs=_named(outputs, "OUTPUT"),
        response_cache=ResponseCache(enable=True) if config.response_cache else None,
        model_warmup=config.model_warmup,
        sequence=config.sequence,
        rate_limiter=config.rate_limiter,
        openai=as_openai(config.openai),
    )


def call_tensors(config: TritonModelConfig) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Returns what callables get and return: also the controls and states of sequences."""
    inputs, outputs = list(config.inputs or ()), list(config.outputs or ())
    if config.sequence is None:
        return inputs, outputs
    inputs += [
        TensorSpec(control.name, (1,), control.dtype) for control in config.sequence.controls
    ]
    for state in config.sequence.states:
        inputs.append(TensorSpec(state.input_name, tuple(state.shape), state.dtype))
        if all(state.output_name != spec.name for spec in outputs):
            outputs.append(TensorSpec(state.output_name, tuple(state.shape), state.dtype))
    names = [spec.name for spec in inputs]
    for name in names:
        if names.count(name) > 1:
            raise PyTritonValidationError(
                f"Expected inputs, controls and states with different names, got {name!r} twice"
            )
    return inputs, outputs


def _named(tensors: Sequence[Tensor], prefix: str) -> list[TensorSpec]:
    return [
        TensorSpec(
            name=tensor.name or f"{prefix}_{number}",
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            optional=tensor.optional,
        )
        for number, tensor in enumerate(tensors, 1)
    ]


def check_name_and_tensors(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Refuse a name that no model may have, and what is no list of tensors."""
    _check_name(name)
    _check_tensors("inputs", inputs)
    _check_tensors("outputs", outputs)


def _check_tensors(argument: str, tensors: Any) -> None:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise PyTritonValidationError(
            f"{argument}: expected a list of Tensor, got {type(tensors).__name__}"
        )
    for tensor in tensors:
        if not all(hasattr(tensor, field) for field in ("name", "shape", "dtype", "optional")):
            raise PyTritonValidationError(
                f"{argument}: expected a list of Tensor, got a list with {tensor!r}"
            )


def _check_name(model_name: str) -> None:
    if not model_name:
        raise PyTritonValidationError("Model name cannot be empty")
    if not _NAME.fullmatch(model_name):
        raise PyTritonValidationError(
            "Model name can only contain alphanumeric characters, dots, underscores and dashes, "
            f"got {model_name!r}"
        )
