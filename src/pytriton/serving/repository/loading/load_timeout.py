# SPDX-License-Identifier: Apache-2.0
"""The time limit for the load of a model version and for the restart of one of its instances."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from pytriton.base.errors import UnavailableError
from pytriton.base.time_limit import within
from pytriton.serving.engine.config import seconds_parameter

PARAMETER = "LOAD_TIMEOUT_SECS"  # of a model, in place of the server's setting

_T = TypeVar("_T")


class LoadTimeoutError(UnavailableError):
    """A load took longer than it may."""


def load_timeout_s(config: Any, default_s: float) -> float:
    """Returns the time limit for loading a version of the model; 0: no limit.

    Raises:
        InvalidArgumentError: The model's parameter is not a number that can be used.
    """
    return seconds_parameter(config, PARAMETER, default_s)


async def load_within(timeout_s: float, load: Awaitable[_T]) -> _T:
    """Await a load with a time limit; 0: no limit.

    Raises:
        LoadTimeoutError: The load took longer and was cancelled.
    """
    if not timeout_s:
        return await load
    try:
        return await within(timeout_s, load)
    except asyncio.TimeoutError:
        raise LoadTimeoutError(
            f"it was not loaded within {timeout_s:g} s, and its processes were ended"
        ) from None
