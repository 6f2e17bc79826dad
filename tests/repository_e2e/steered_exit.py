# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.repository_e2e.steered_exit`: `tritonserver` whose grace period is steered.

Each half of it ends when the next of the files of `HALVES` is there, however busy the machine is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pytriton.serving.server.tritonserver import command

GRACE_S = 2 * 77_777  # a time that nothing else waits for
HALVES = ("balancers-have-noticed", "clients-have-left")  # in the working directory
_POLL_S = 0.01

_wait = asyncio.wait
_halves = iter(HALVES)


async def _steered_wait(futures: Any, *, timeout: float | None = None, **options: Any) -> Any:
    if timeout != GRACE_S / 2:
        return await _wait(futures, timeout=timeout, **options)
    end = Path(next(_halves))
    done, pending = await _wait(futures, timeout=0, **options)
    while not (done or end.exists()):  # noqa: ASYNC240  it takes no time
        done, pending = await _wait(futures, timeout=_POLL_S, **options)
    return done, pending


if __name__ == "__main__":
    asyncio.wait = _steered_wait  # type: ignore[assignment]
    command()
