# SPDX-License-Identifier: Apache-2.0
"""The in-process API under the names of Triton's own Python package; see `pytriton.inprocess`."""

import typing as _typing  # the other names here are those of Triton

from pytriton.inprocess import AlreadyExistsError as AlreadyExistsError
from pytriton.inprocess import DataType as DataType
from pytriton.inprocess import DLDeviceType as DLDeviceType
from pytriton.inprocess import InferenceRequest as InferenceRequest
from pytriton.inprocess import InferenceResponse as InferenceResponse
from pytriton.inprocess import InstanceGroupKind as InstanceGroupKind
from pytriton.inprocess import InternalError as InternalError
from pytriton.inprocess import InvalidArgumentError as InvalidArgumentError
from pytriton.inprocess import LogFormat as LogFormat
from pytriton.inprocess import MemoryBuffer as MemoryBuffer
from pytriton.inprocess import MemoryType as MemoryType
from pytriton.inprocess import Metric as Metric
from pytriton.inprocess import MetricFamily as MetricFamily
from pytriton.inprocess import MetricFormat as MetricFormat
from pytriton.inprocess import MetricKind as MetricKind
from pytriton.inprocess import Model as Model
from pytriton.inprocess import ModelBatchFlag as ModelBatchFlag
from pytriton.inprocess import ModelControlMode as ModelControlMode
from pytriton.inprocess import ModelTxnPropertyFlag as ModelTxnPropertyFlag
from pytriton.inprocess import NotFoundError as NotFoundError
from pytriton.inprocess import Options as Options
from pytriton.inprocess import RateLimiterResource as RateLimiterResource
from pytriton.inprocess import RateLimitMode as RateLimitMode
from pytriton.inprocess import Server as Server
from pytriton.inprocess import Tensor as Tensor
from pytriton.inprocess import TritonError as TritonError
from pytriton.inprocess import UnavailableError as UnavailableError
from pytriton.inprocess import UnknownError as UnknownError
from pytriton.inprocess import UnsupportedError as UnsupportedError
from tritonserver import _api as _api  # programs say tritonserver._api after this import alone

if _typing.TYPE_CHECKING:
    __version__: str
else:  # with it, type checkers would accept any name

    def __getattr__(name: str) -> str:
        if name == "__version__":
            from importlib import metadata  # noqa: PLC0415  takes 50 ms, and few programs ask

            try:
                return metadata.version("tritonserver")
            except metadata.PackageNotFoundError:
                return "UNKNOWN"
        raise AttributeError(f"module 'tritonserver' has no attribute {name!r}")
