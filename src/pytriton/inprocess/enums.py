# SPDX-License-Identifier: Apache-2.0
"""The enumerations of the in-process API, numbered as in Triton's C API."""

from __future__ import annotations

import enum


class ModelControlMode(enum.IntEnum):
    """How it is decided which models are loaded."""

    NONE = 0  # all models, when the server starts
    POLL = 1  # the same, and what `Server.poll_model_repository` finds changed
    EXPLICIT = 2  # those that `Options.startup_models` and `Server.load` name


class RateLimitMode(enum.IntEnum):
    """Whether instances wait for resources before they execute."""

    OFF = 0
    EXEC_COUNT = 1


class LogFormat(enum.IntEnum):
    """The format of lines in the log."""

    DEFAULT = 0
    ISO8601 = 1


class MetricFormat(enum.IntEnum):
    """The format of `Server.metrics`."""

    PROMETHEUS = 0


class MetricKind(enum.IntEnum):
    """The kinds of metrics that a program can add."""

    COUNTER = 0
    GAUGE = 1


class InstanceGroupKind(enum.IntEnum):
    """Where instances of a model run."""

    AUTO = 0
    CPU = 1
    GPU = 2
    MODEL = 3


class MemoryType(enum.IntEnum):
    """The kind of memory that a tensor is in."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class DataType(enum.IntEnum):
    """The datatypes of tensors."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14


class ModelBatchFlag(enum.IntFlag):
    """Whether the first dimension of a model's tensors is that of the batch."""

    UNKNOWN = 1
    FIRST_DIM = 2


class ModelTxnPropertyFlag(enum.IntFlag):
    """How many responses a model sends to a request."""

    ONE_TO_ONE = 1
    DECOUPLED = 2


class DLDeviceType(enum.IntEnum):
    """The device types of DLPack."""

    kDLCPU = 1  # noqa: N815  the names of the standard, as are those below
    kDLCUDA = 2  # noqa: N815
    kDLCUDAHost = 3  # noqa: N815
    kDLOpenCL = 4  # noqa: N815
    kDLVulkan = 7  # noqa: N815
    kDLMetal = 8  # noqa: N815
    kDLVPI = 9  # noqa: N815
    kDLROCM = 10  # noqa: N815
    kDLROCMHost = 11  # noqa: N815
    kDLExtDev = 12  # noqa: N815
    kDLCUDAManaged = 13  # noqa: N815
    kDLOneAPI = 14  # noqa: N815
    kDLWebGPU = 15  # noqa: N815
    kDLHexagon = 16  # noqa: N815
