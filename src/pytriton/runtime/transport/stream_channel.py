# SPDX-License-Identifier: Apache-2.0
"""A channel between machines: frames over a stream socket, each followed by its tensors.

A message is a head with two sizes, the record in MessagePack, padding, then the tensors, each
aligned. It is received as a whole, so that all tensors of a message share one piece of memory.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from pytriton.runtime.transport.link import close_in_forked_children
from pytriton.runtime.transport.payload import Payload, Received
from pytriton.runtime.transport.stream_reader import StreamReader
from pytriton.runtime.transport.stream_writer import StreamWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.runtime.transport.frames import Frame

# A machine that is gone is noticed after this time, whatever its interpreter is busy with. That is
# for idle connections; `peer_watch` is for those with data on its way.
_IDLE_S = 1
_PROBE_INTERVAL_S = 1
_PROBES = 3


def tune_stream(sock: socket.socket) -> None:
    """Set the options of a connection to another machine; does nothing on a Unix socket."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS has another name for the first of them.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), _IDLE_S),
        (("TCP_KEEPINTVL",), _PROBE_INTERVAL_S),
        (("TCP_KEEPCNT",), _PROBES),
    ):
        option = next((getattr(socket, name) for name in names if hasattr(socket, name)), None)
        if option is not None:
            with contextlib.suppress(OSError):  # a system that knows the name but not the option
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


class StreamChannel:
    """One end of a connection that shares no memory; see `Channel`."""

    arena = None
    maps_memory = False
    has_memory_update = False
    has_idle_memory = False
    reserved_bytes = 0

    def __init__(self, sock: socket.socket) -> None:
        close_in_forked_children(sock)
        self._socket = sock
        self._reader = StreamReader(sock)
        self._writer = StreamWriter(sock)
        self._send_lock = threading.Lock()
        self.releases_at_once = False

    def fileno(self) -> int:
        """See `Channel`; -1 after `close`."""
        return self._socket.fileno()

    def set_blocking(self, is_blocking: bool) -> None:
        """See `Channel`."""
        self._socket.setblocking(is_blocking)
        self._reader.is_blocking = self._writer.is_blocking = is_blocking

    def payload(self) -> Payload:
        """See `Channel`."""
        return Payload(None)

    def send(self, frame: Frame, payload: Payload | None = None) -> bool:
        """See `Channel`. Nothing may change the tensors while `has_unsent`."""
        with self._send_lock:
            if payload is None:
                self._writer.send(frame, (), 0)
            else:
                self._writer.send(frame, payload.inline, payload.inline_size)
        return self._writer.has_unsent

    def receive(self, flags: int = 0) -> Received | None:
        """See `Channel`."""
        return self._reader.receive(flags)

    @property
    def has_message(self) -> bool:
        """See `Channel`."""
        return self._reader.has_message

    @property
    def has_unsent(self) -> bool:
        """See `Channel`."""
        return self._writer.has_unsent

    def flush(self) -> None:
        """See `Channel`."""
        with self._send_lock:
            self._writer.flush()

    @property
    def has_unread(self) -> bool:
        """See `Channel`; only what the peer's machine has received is known, not what was read."""
        return self._writer.has_unsent

    def close(self) -> None:
        """See `Channel`."""
        self._socket.close()
        self._writer.close()
        self._reader.close()

    def take_descriptors(self, count: int) -> list[int]:
        """See `Channel`; a descriptor cannot leave its machine."""
        raise NotImplementedError(f"{count} descriptors cannot come from another machine")

    def send_memory_update(self) -> None:
        """See `Channel`; nothing is shared."""

    def queue_dropped_segments(self, segments: Iterable[int]) -> None:
        """See `Channel`; nothing is shared."""

    def trim(self, idle_seconds: float) -> None:
        """See `Channel`; nothing is shared."""

    def __repr__(self) -> str:
        return f"<StreamChannel fd={self.fileno()}>"
