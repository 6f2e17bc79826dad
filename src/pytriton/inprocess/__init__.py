# SPDX-License-Identifier: Apache-2.0
"""The engine in a program's own process, without a network: `Server` and its models.

`import tritonserver` gives the same objects under the names that programs for Triton use.
"""

from pytriton.inprocess.enums import (
    DataType,
    DLDeviceType,
    InstanceGroupKind,
    LogFormat,
    MemoryType,
    MetricFormat,
    MetricKind,
    ModelBatchFlag,
    ModelControlMode,
    ModelTxnPropertyFlag,
    RateLimitMode,
)
from pytriton.inprocess.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from pytriton.inprocess.metrics import Metric, MetricFamily
from pytriton.inprocess.model import Model, ModelDictionary
from pytriton.inprocess.options import ModelLoadDeviceLimit, Options, RateLimiterResource
from pytriton.inprocess.request import InferenceRequest, InferenceResponse
from pytriton.inprocess.responses import AsyncResponseIterator, ResponseIterator
from pytriton.inprocess.server import Server
from pytriton.inprocess.tensor import MemoryBuffer, Tensor

__all__ = [
    "AlreadyExistsError",
    "AsyncResponseIterator",
    "CancelledError",
    "DLDeviceType",
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceGroupKind",
    "InternalError",
    "InvalidArgumentError",
    "LogFormat",
    "MemoryBuffer",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelDictionary",
    "ModelLoadDeviceLimit",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "Options",
    "RateLimitMode",
    "RateLimiterResource",
    "ResponseIterator",
    "Server",
    "Tensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
]
