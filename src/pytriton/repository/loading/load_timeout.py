# SPDX-License-Identifier: Apache-2.0
"""How long the load of a model version, or the restart of one of its instances, may take."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import Any, TypeVar

from pytriton.errors import InvalidArgumentError, UnavailableError

PARAMETER = "LOAD_TIMEOUT_SECS"  # of a model, in place of the server's setting

_T = TypeVar("_T")


def load_timeout_s(config: Any, default_s: float) -> float:
    """How long a version of the model may take to load; 0 is as long as it takes.

    Raises:
        InvalidArgumentError: The model's parameter is no such number.
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
    """What a load gives, unless it takes longer than this; 0 is as long as it takes.

    Raises:
        UnavailableError: It took longer, and was cancelled.
    """
    if not timeout_s:
        return await load
    try:
        return await asyncio.wait_for(load, timeout_s)
    except asyncio.TimeoutError:
        raise UnavailableError(
            f"it was not loaded within {timeout_s:g} s, and its processes were ended"
        ) from None
