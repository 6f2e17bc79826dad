# SPDX-License-Identifier: Apache-2.0
"""Runs work on models side by side, except that some of it has to wait for other models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping


async def run_in_order(
    waits: Mapping[str, Collection[str]], work: Callable[[str], Awaitable[None]]
) -> dict[str, BaseException | None]:
    """Run work on models, each as soon as those that it waits for have ended, whatever came of it.

    Args:
        waits: The models, and for each those among them that it waits for; without cycles.
        work: Does the work on the model of this name.

    Returns:
        The exception of each model's work, None if it succeeded.
    """
    tasks: dict[str, asyncio.Future[None]] = {}

    async def run(name: str) -> None:
        if waits[name]:
            await asyncio.wait([tasks[each] for each in waits[name]])
        await work(name)

    for name in waits:
        tasks[name] = asyncio.ensure_future(run(name))
    if not tasks:
        return {}
    try:
        await asyncio.wait(tasks.values())
    except BaseException:
        for task in tasks.values():
            task.cancel()
            task.add_done_callback(_outcome)  # nobody else asks for it
        await asyncio.wait(tasks.values())
        raise
    return {name: _outcome(task) for name, task in tasks.items()}


def _outcome(task: asyncio.Future[None]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
