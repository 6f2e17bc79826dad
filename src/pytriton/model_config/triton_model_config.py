# SPDX-License-Identifier: Apache-2.0
"""A model's whole configuration, as servers, clients and the context of a request have it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pytriton.base.openai_routes import OpenAI
from pytriton.model_config.common import DeviceKind, DynamicBatcher, ModelWarmup, RateLimiter
from pytriton.model_config.sequence_batcher import SequenceBatcher

__all__ = [
    "DeviceKind",
    "DynamicBatcher",
    "ModelWarmup",
    "ResponseCache",
    "SequenceBatcher",
    "TensorSpec",
    "TritonModelConfig",
]


@dataclasses.dataclass
class ResponseCache:
    """Whether responses of the model are cached.

    Args:
        enable: whether to cache them.
    """

    enable: bool


@dataclasses.dataclass
class TensorSpec:
    """An input or output of a model with its final name.

    Args:
        name: name of the tensor.
        shape: dimensions without the batch dimension; -1 is a dimension of any size.
        dtype: type of the elements, a numpy type.
        optional: whether a request may leave the tensor out.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    optional: bool | None = False


@dataclasses.dataclass
class TritonModelConfig:
    """The whole configuration of a model.

    Args:
        model_name: name of the model.
        model_version: version of the model.
        max_batch_size: maximum number of rows of a batch.
        batching: whether tensors have a leading batch dimension.
        batcher: how requests are combined; None executes each request alone.
        instance_group: number of instances by kind of device; None lets the server choose.
        decoupled: whether the model sends any number of responses to a request.
        backend_parameters: parameters for the model's backend.
        inputs: inputs of the model.
        outputs: outputs of the model.
        response_cache: whether responses are cached.
        model_warmup: requests that the model gets before it is ready.
        sequence: how requests belong to sequences; replaces `batcher`.
        rate_limiter: what each instance needs to run, in every instance group.
        openai: which of OpenAI's routes serve the model; None: they do not know it.
    """

    model_name: str
    model_version: int = 1
    max_batch_size: int = 4
    batching: bool = True
    batcher: DynamicBatcher | None = None
    instance_group: dict[DeviceKind, int | None] = dataclasses.field(default_factory=dict)
    decoupled: bool = False
    backend_parameters: dict[str, str] = dataclasses.field(default_factory=dict)
    inputs: Sequence[TensorSpec] | None = None
    outputs: Sequence[TensorSpec] | None = None
    response_cache: ResponseCache | None = None
    model_warmup: list[ModelWarmup] | None = None
    sequence: SequenceBatcher | None = None
    rate_limiter: RateLimiter | None = None
    openai: OpenAI | None = None

    @property
    def backend(self) -> str:
        """The backend of every model bound from Python."""
        return "python"
