# SPDX-License-Identifier: Apache-2.0
"""The configuration of a bound model: its tensors, its batching, its warm-up."""

from pytriton.base.openai_routes import ChatTemplate, OpenAI
from pytriton.model_config.common import (
    DeviceKind,
    DynamicBatcher,
    QueuePolicy,
    RateLimiter,
    RateLimiterResource,
    TimeoutAction,
)
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.ray_instances import Ray
from pytriton.model_config.sequence_batcher import (
    ControlKind,
    DirectStrategy,
    OldestStrategy,
    SequenceBatcher,
    SequenceControl,
    SequenceState,
)
from pytriton.model_config.tensor import Tensor

__all__ = [
    "ChatTemplate",
    "ControlKind",
    "DeviceKind",
    "DirectStrategy",
    "DynamicBatcher",
    "ModelConfig",
    "OldestStrategy",
    "OpenAI",
    "QueuePolicy",
    "RateLimiter",
    "RateLimiterResource",
    "Ray",
    "SequenceBatcher",
    "SequenceControl",
    "SequenceState",
    "Tensor",
    "TimeoutAction",
]
