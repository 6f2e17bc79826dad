# SPDX-License-Identifier: Apache-2.0
"""Sends compressed messages of a stream in order; a thread compresses large ones."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pytriton.protocol.kserve_pb_response import message_size

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.grpc import Status
    from pytriton.serving.server.grpc.call import Call

SMALL_BYTES = 64 << 10  # up to this size, compressed at once, in 2 ms at most
_HIGH_WATER_BYTES = 1 << 20


class _FinalStatus(NamedTuple):
    """The status that follows the last message."""

    status: Status
    message: str


class CompressedSends:
    """The queue of one call's messages that have to be compressed."""

    __slots__ = ("_call", "_is_paused", "_waiting", "_waiting_bytes")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._waiting: deque[list[Buffer] | _FinalStatus] = deque()
        self._waiting_bytes = 0
        self._is_paused = False

    def send(self, parts: list[Buffer]) -> bool:
        """Send a message; returns False if the caller should pause until `Call.on_writable`."""
        size = message_size(parts)
        if not self._waiting and size <= SMALL_BYTES:
            return self._call.send_now(parts)
        self._add(parts)
        self._waiting_bytes += size
        self._is_paused = self._waiting_bytes >= _HIGH_WATER_BYTES
        return not self._is_paused

    def finish(self, status: Status, message: str) -> bool:
        """Queue the end of the call; returns False, and does nothing, if the queue is empty."""
        if self._waiting:
            self._add(_FinalStatus(status, message))
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
                framed = await call.connection.work.background.run(call.frame, item)
                self._waiting_bytes -= message_size(item)
                is_ready = call.send_framed(framed)
            self._waiting.popleft()
        self._waiting.clear()
        if self._is_paused and is_ready:
            call.on_writable()
        self._is_paused = False
