# SPDX-License-Identifier: Apache-2.0
"""The errors that models and backends raise to choose the status of a response."""

from __future__ import annotations

from pytriton.base.errors import (
    AlreadyExistsError,
    CancelledError,
    ErrorCode,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
    UnavailableError,
    UnsupportedError,
)

__all__ = [
    "AlreadyExistsError",
    "CancelledError",
    "ErrorCode",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "ServerError",
    "UnavailableError",
    "UnsupportedError",
]
