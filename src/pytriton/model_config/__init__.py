# SPDX-License-Identifier: Apache-2.0
"""The configuration of a bound model: its tensors, its batching, its warm-up."""

from pytriton.model_config.common import DeviceKind, DynamicBatcher, QueuePolicy, TimeoutAction
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.rate_limiter import RateLimiter, RateLimiterResource
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
    "ControlKind",
    "DeviceKind",
    "DirectStrategy",
    "DynamicBatcher",
    "ModelConfig",
    "OldestStrategy",
    "QueuePolicy",
    "RateLimiter",
    "RateLimiterResource",
    "SequenceBatcher",
    "SequenceControl",
    "SequenceState",
    "Tensor",
    "TimeoutAction",
]
