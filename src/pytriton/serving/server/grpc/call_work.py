# SPDX-License-Identifier: Apache-2.0
"""Runs coroutines and thread jobs for gRPC calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pytriton.base.background_tasks import BackgroundTasks
    from pytriton.base.dtypes import Buffer
    from pytriton.serving.server.api.background import Background
    from pytriton.serving.server.api.loop_budget import LoopBudget
    from pytriton.serving.server.grpc.call import Call


class CallWork:
    """Runs them for all calls; an exception ends the call that it was raised for."""

    def __init__(
        self, tasks: BackgroundTasks, background: Background, loop_budget: LoopBudget
    ) -> None:
        self._tasks = tasks
        self.background = background
        self.loop_budget = loop_budget

    def run_task(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine that answers a call; it is not cancelled if the client disconnects."""
        self._tasks.start(_answer_errors(call, work))

    def run_in_thread(
        self, call: Call, then: Callable[[Any], None], work: Callable[..., Any], *arguments: Any
    ) -> None:
        """Run `work` in a thread, then call `then` with its result.

        Until then, the call processes no further message.
        """
        call.is_busy = True
        self.run_task(call, self._run_in_thread(call, then, work, arguments))

    async def _run_in_thread(
        self,
        call: Call,
        then: Callable[[Any], None],
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> None:
        result = await self.background.run(work, *arguments)
        call.is_busy = False
        if call.is_open:
            then(result)
            call.resume_input()

    def run_in_turn(self, call: Call, then: Callable[[Any], None], message: Buffer) -> None:
        """Call `then` with a message in a later iteration of the event loop.

        Until then, the call processes no further message.
        """
        call.is_busy = True
        self.run_task(call, self._run_in_turn(call, partial(then, message)))

    async def _run_in_turn(self, call: Call, work: Callable[[], None]) -> None:
        def process() -> None:
            call.is_busy = False
            if call.is_open:
                work()

        await self.loop_budget.run(process)
        if call.is_open:
            call.resume_input()


async def _answer_errors(call: Call, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001  it is sent to the client
        call.connection.fail_call(call, error)
