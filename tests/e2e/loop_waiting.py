# SPDX-License-Identifier: Apache-2.0
"""Waiting on an event loop for a condition with a deadline; `waiting` is for threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tests.e2e.waiting import DEADLINE_S

_POLL_S = 0.001


async def comes_true(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> bool:
    """Whether the condition comes true before the deadline, while the loop runs."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_POLL_S)
    return True
