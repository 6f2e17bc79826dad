# SPDX-License-Identifier: Apache-2.0
"""The time limit for the load of a model version and for the restart of one of its instances."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import Any, TypeVar

from pytriton.errors import InvalidArgumentError, UnavailableError

PARAMETER = "LOAD_TIMEOUT_SECS"  # of a model, in place of the server's setting

_T = TypeVar("_T")


def load_timeout_s(config: Any, default_s: float) -> float:
    """Returns the time limit for loading a version of the model; 0: no limit.

    Raises:
        InvalidArgumentError: The model's parameter is not a number that can be used.
    """
    if PARAMETER not in config.parameters:
        return default_s
    text = config.parameters[PARAMETER].string_value
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = -1.0
    if not 0.0 <= timeout_s < math.inf:
        raise InvalidArgumentError(
            f"expected a number of seconds as parameter {PARAMETER} of model "
            f"'{config.name}', got '{text}'"
        )
    return timeout_s


async def load_within(timeout_s: float, load: Awaitable[_T]) -> _T:
    """Await a load with a time limit; 0: no limit.

    Raises:
        UnavailableError: The load took longer and was cancelled.
    """
    if not timeout_s:
        return await load
    try:
        return await asyncio.wait_for(load, timeout_s)
    except asyncio.TimeoutError:
        raise UnavailableError(
            f"it was not loaded within {timeout_s:g} s, and its processes were ended"
        ) from None
