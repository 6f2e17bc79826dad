# SPDX-License-Identifier: Apache-2.0
"""What is done for calls beside the event that brought them: coroutines, and work for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pytriton.background_tasks import BackgroundTasks
    from pytriton.server.api.background import Background
    from pytriton.server.grpc.call import Call


class CallWork:
    """Does it for all calls; what goes wrong ends the call that it is for."""

    def __init__(self, tasks: BackgroundTasks, background: Background) -> None:
        self._tasks = tasks
        self.background = background

    def serve_later(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        """Have a coroutine answer a call; it goes on when the client leaves."""
        self._tasks.start(_answer_errors(call, work))

    def run_aside(
        self, call: Call, then: Callable[[Any], None], work: Callable[..., Any], *arguments: Any
    ) -> None:
        """Have a thread do work for a call and then go on; the call takes no message meanwhile."""
        call.is_busy = True
        self.serve_later(call, self._run_aside(call, then, work, arguments))

    async def _run_aside(
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
            call.read_on()


async def _answer_errors(call: Call, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001  the client hears of it
        call.connection.fail_call(call, error)
