# SPDX-License-Identifier: Apache-2.0
"""What gRPC calls do in threads, or in a later iteration of the event loop, and in which order."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pytriton.protocol.kserve_pb_response import message_size
from pytriton.serving.server.api.request_memory import RequestMemory
from pytriton.serving.server.grpc.call_state import ENDED, OPEN, WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from pytriton.base.background_tasks import BackgroundTasks
    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.grpc import GrpcStatus
    from pytriton.protocol.http2.headers import Field
    from pytriton.serving.server.api.background import Background, LoopBudget
    from pytriton.serving.server.grpc.call import GrpcCall

SMALL_BYTES = 64 << 10  # up to this size, compressed at once, in 2 ms at most
_HIGH_WATER_BYTES = 1 << 20


class _FinalStatus(NamedTuple):
    """The status that follows the last message."""

    status: GrpcStatus
    message: str
    metadata: Sequence[Field] = ()


class CompressedSends:
    """The queue of one call's messages that have to be compressed."""

    __slots__ = ("_call", "_is_paused", "_waiting", "_waiting_bytes")

    def __init__(self, call: GrpcCall) -> None:
        self._call = call
        self._waiting: deque[list[Buffer] | _FinalStatus] = deque()
        self._waiting_bytes = 0
        self._is_paused = False

    def send(self, parts: list[Buffer]) -> bool:
        """Send a message; returns False if the caller should pause until `GrpcCall.on_writable`."""
        size = message_size(parts)
        if not self._waiting and size <= SMALL_BYTES:
            return self._call.send_now(parts)
        self._add(parts)
        self._waiting_bytes += size
        self._is_paused = self._waiting_bytes >= _HIGH_WATER_BYTES
        return not self._is_paused

    def finish(self, status: GrpcStatus, message: str, metadata: Sequence[Field]) -> bool:
        """Queue the end of the call; returns False, and does nothing, if the queue is empty."""
        if self._waiting:
            self._add(_FinalStatus(status, message, metadata))
            return True
        return False

    def _add(self, item: list[Buffer] | _FinalStatus) -> None:
        self._waiting.append(item)
        if len(self._waiting) == 1:
            self._call.connection.work.run_task(self._call, self._run())

    async def _run(self) -> None:
        call = self._call
        is_ready = True
        while self._waiting and call.connection.http2.is_open(call.stream_id):
            item = self._waiting[0]
            if isinstance(item, _FinalStatus):
                call.finish_now(*item)
            else:
                try:
                    framed = await call.connection.work.background.run(call.frame, item)
                except Exception:
                    # The status may wait behind this message. The call has to end with another.
                    self._waiting.clear()
                    if call.state is ENDED and call.connection.http2.is_open(call.stream_id):
                        call.state = OPEN
                    raise
                self._waiting_bytes -= message_size(item)
                is_ready = call.send_framed(framed)
            self._waiting.popleft()
        self._waiting.clear()
        if self._is_paused and is_ready:
            call.on_writable()
        self._is_paused = False


class CallWork:
    """Runs coroutines and thread jobs; an exception ends the call that it was raised for."""

    def __init__(
        self,
        tasks: BackgroundTasks,
        background: Background,
        loop_budget: LoopBudget,
        memory: RequestMemory | None = None,
    ) -> None:
        self.memory = RequestMemory() if memory is None else memory
        self.refusals: Counter[str] = Counter()  # by the limit that a call exceeded
        self._tasks = tasks
        self.background = background
        self.loop_budget = loop_budget

    def run_task(self, call: GrpcCall, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine that answers a call; it is not cancelled if the client disconnects."""
        self._tasks.start(_answer_errors(call, work))

    def run_in_thread(
        self, call: GrpcCall, then: Callable[[Any], None], work: Callable[..., Any], *arguments: Any
    ) -> None:
        """Run `work` in a thread, then call `then` with its result.

        Until then, the call processes no further message.
        """
        call.waits |= WORK
        self.run_task(call, self._run_in_thread(call, then, work, arguments))

    async def _run_in_thread(
        self,
        call: GrpcCall,
        then: Callable[[Any], None],
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> None:
        result = await self.background.run(work, *arguments)
        call.waits &= ~WORK
        if call.state is not ENDED:
            then(result)
            call.resume_input()

    def run_in_turn(self, call: GrpcCall, then: Callable[[Any], None], message: Buffer) -> None:
        """Call `then` with a message in a later iteration of the event loop.

        Until then, the call processes no further message.
        """
        call.waits |= WORK
        self.run_task(call, self._run_in_turn(call, partial(then, message)))

    async def _run_in_turn(self, call: GrpcCall, work: Callable[[], None]) -> None:
        def process() -> None:
            call.waits &= ~WORK
            if call.state is not ENDED:
                work()

        await self.loop_budget.run(process)
        if call.state is not ENDED:
            call.resume_input()


async def _answer_errors(call: GrpcCall, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001  it is sent to the client
        call.connection.fail_call(call, error)
