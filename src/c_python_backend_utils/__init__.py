# SPDX-License-Identifier: Apache-2.0
"""The classes that are native code in Triton, for models that import them from this module.

Models should import `triton_python_backend_utils`, which has everything that they need.
"""

from __future__ import annotations

from pytriton.runtime.pb_utils.failures import TritonError, TritonModelException
from pytriton.runtime.pb_utils.helpers import is_model_ready, load_model, unload_model
from pytriton.runtime.pb_utils.logger import Logger
from pytriton.runtime.pb_utils.memory import (
    MemoryType,
    PreferredMemory,
    SharedMemory,
    shared_memory,
)
from pytriton.runtime.pb_utils.metrics import Metric, MetricFamily, MetricKind
from pytriton.runtime.pb_utils.request import InferenceRequest, InferenceTrace
from pytriton.runtime.pb_utils.response import (
    InferenceResponse,
    InferenceResponseSender,
    ResponseIterator,
)
from pytriton.runtime.pb_utils.tensor import Tensor

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "ResponseIterator",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "is_model_ready",
    "load_model",
    "shared_memory",
    "unload_model",
]

COUNTER = MetricKind.COUNTER
GAUGE = MetricKind.GAUGE
HISTOGRAM = MetricKind.HISTOGRAM
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
