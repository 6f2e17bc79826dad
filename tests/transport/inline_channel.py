# SPDX-License-Identifier: Apache-2.0
"""A channel without shared memory, as one between two machines would be: all is in the message."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable

from pytriton.transport.frames import Frame, decode_frame, encode_frame
from pytriton.transport.link import StreamLink
from pytriton.transport.payload import Payload, Received


class InlineChannel:
    """Frames and tensors over a stream socket; see `Channel`."""

    arena = None
    maps_memory = has_memory_update = has_idle_memory = False
    reserved_bytes = 0

    def __init__(self, sock: socket.socket) -> None:
        self.link = StreamLink(sock)
        self.releases_at_once = False
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self.link.socket.fileno()

    def set_blocking(self, is_blocking: bool) -> None:
        self.link.socket.setblocking(is_blocking)

    def payload(self) -> Payload:
        return Payload(None)

    def send(self, frame: Frame, payload: Payload | None = None) -> None:
        pieces = payload.inline if payload is not None else []
        message = b"".join((encode_frame(frame), *pieces))
        with self._lock:
            self.link.send(message)

    def receive(self, flags: int = 0) -> Received | None:
        message = self.link.receive(flags)
        if message is None:
            return None
        if not message:
            raise EOFError
        frame, start = decode_frame(memoryview(message))
        return Received(frame, message, start, {})

    @property
    def has_message(self) -> bool:
        return self.link.has_message

    @property
    def has_unsent(self) -> bool:
        return self.link.has_unsent

    has_unread = False

    def flush(self) -> None:
        self.link.flush()

    def close(self) -> None:
        self.link.close()

    def send_memory_update(self) -> None:
        """Nothing is shared."""

    def queue_dropped_segments(self, segments: Iterable[int]) -> None:
        """Nothing is shared."""

    def trim(self, idle_seconds: float) -> None:
        """Nothing is shared."""
