# SPDX-License-Identifier: Apache-2.0
"""A channel between processes of one machine: small tensors inside the message, large ones shared.

Both ends use the same class. Messages are sent over a Unix socket, together with file descriptors
of memory. `pytriton.runtime.transport.block_tracker` tracks which blocks are in use.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from pytriton.base.errors import UnavailableError, resource_error
from pytriton.runtime.transport.block_tracker import BlockTracker
from pytriton.runtime.transport.frames import MemoryFrame, decode_frame, encode_frame
from pytriton.runtime.transport.link import make_link
from pytriton.runtime.transport.memory import ReceivedSegment
from pytriton.runtime.transport.payload import Payload, Received

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pytriton.runtime.transport.arena import Arena
    from pytriton.runtime.transport.frames import Frame
    from pytriton.runtime.transport.refs import SegmentRef

_NO_BLOCKS: dict[int, NDArray[np.uint8]] = {}


class MemoryChannel:
    """One end of a connection between two processes that share memory; see `Channel`.

    Args:
        sock: The socket.
        arena: The arena for large tensors of this process.
        to_front_end: Whether the peer is a front end. It only reads the blocks that it gets, and it
            reads its own blocks no more once it has sent them, so both kinds are forwarded between
            front ends and instances without a copy.
    """

    def __init__(self, sock: socket.socket, arena: Arena, *, to_front_end: bool = False) -> None:
        self.link = make_link(sock)
        self.arena = arena
        self.tracker = BlockTracker(self._on_release, peer_gives_up_blocks=to_front_end)
        arena.senders.add(self.tracker)
        self._forwards = to_front_end
        self.releases_at_once = False
        self._send_lock = threading.Lock()

    def fileno(self) -> int:
        """See `Channel`; -1 after `close`."""
        return self.link.socket.fileno()

    def set_blocking(self, is_blocking: bool) -> None:
        """See `Channel`."""
        self.link.socket.setblocking(is_blocking)

    def payload(self) -> Payload:
        """See `Channel`."""
        return Payload(self.arena, forwards=self._forwards)

    def send(self, frame: Frame, payload: Payload | None = None) -> bool:
        """See `Channel`."""
        with self._send_lock:
            is_unsent = self._send(frame, payload)
        # Arrays that were dropped by a thread which found the lock taken; see `_send_releases`.
        if self.releases_at_once and self.tracker.has_releases:
            self._send_releases()
            is_unsent = self.link.has_unsent
        return is_unsent

    def receive(self, flags: int = 0) -> Received | None:
        """See `Channel`."""
        message = self.link.receive(flags)
        if message is None:
            return None
        if not message:
            raise EOFError
        frame, start = decode_frame(message)
        memory = frame.memory
        if memory is None:
            return Received(frame, message, start, _NO_BLOCKS)
        segments = self._take_segments(memory.segments) if memory.segments else ()
        blocks = self.tracker.apply_update(memory, segments)
        return Received(frame, message, start, blocks)

    @property
    def has_message(self) -> bool:
        """See `Channel`."""
        return self.link.has_message

    @property
    def has_unsent(self) -> bool:
        """See `Channel`."""
        return self.link.has_unsent

    def flush(self) -> None:
        """See `Channel`."""
        with self._send_lock:
            self.link.flush()
        if self.releases_at_once and self.tracker.has_releases:
            self._send_releases()

    @property
    def has_unread(self) -> bool:
        """See `Channel`."""
        return self.link.has_unread

    def close(self) -> None:
        """See `Channel`. Blocks that the peer may still read are never used again."""
        self.tracker.close()
        self.link.close()

    def take_descriptors(self, count: int) -> list[int]:
        """See `Channel`."""
        return self.link.take_descriptors(count)

    @property
    def maps_memory(self) -> bool:
        """See `Channel`."""
        tracker = self.tracker
        return tracker.mapped_count > 0 or tracker.forwarded_count > 0

    @property
    def has_memory_update(self) -> bool:
        """See `Channel`."""
        return self.tracker.has_update

    def send_memory_update(self) -> None:
        """See `Channel`."""
        if self.tracker.has_update:
            self.send(MemoryFrame())

    def queue_dropped_segments(self, segments: Iterable[int]) -> None:
        """See `Channel`."""
        self.tracker.queue_dropped_segments(segments)

    def drop_segments(self, segments: Iterable[int]) -> None:
        """Tell the peer now which segments were dropped."""
        self.queue_dropped_segments(segments)
        with contextlib.suppress(OSError):  # the process ended; its instance handles that
            self.send_memory_update()

    @property
    def reserved_bytes(self) -> int:
        """See `Channel`."""
        return self.arena.reserved_bytes

    @property
    def has_idle_memory(self) -> bool:
        """See `Channel`."""
        return self.arena.has_idle_segments

    def trim(self, idle_seconds: float) -> None:
        """See `Channel`."""
        self.tracker.queue_dropped_segments(self.arena.trim(idle_seconds=idle_seconds))
        self.send_memory_update()

    def __repr__(self) -> str:
        tracker = self.tracker
        return (
            f"<MemoryChannel fd={self.fileno()} lent={tracker.lent_count} "
            f"mapped={tracker.mapped_count}>"
        )

    def _send(self, frame: Frame, payload: Payload | None) -> bool:
        if payload is None:
            payload = self.payload()
        # First, as it may fail: the tracker counts blocks as lent once it has made an update.
        message = encode_frame(frame, payload.inline)
        descriptors: Sequence[int] = payload.descriptors
        if descriptors:
            # The descriptors of memory come with another message: the receiver has to know which
            # ones are missing if it has no room for all.
            if self.tracker.has_update:
                self._send(MemoryFrame(), None)
        elif payload.blocks or payload.returned_blocks or self.tracker.has_update:
            frame.memory, descriptors = self.tracker.make_update(payload)
            message = encode_frame(frame, payload.inline)
        return self.link.send(message, descriptors)

    def _take_segments(
        self, refs: Sequence[SegmentRef]
    ) -> list[ReceivedSegment | UnavailableError]:
        """Map segments; returns the reason in place of each that there are no resources for."""
        try:
            descriptors = self.link.take_descriptors(len(refs))
        except UnavailableError as error:
            return [error] * len(refs)
        if len(descriptors) != len(refs):
            raise ValueError(f"expected {len(refs)} descriptors, got {len(descriptors)}")
        # Each mapping owns its descriptor from the moment it is taken from the list.
        try:
            return [_map(descriptors.pop(0), ref.size) for ref in refs]
        finally:
            for descriptor in descriptors:  # what is left if one of them was refused
                os.close(descriptor)

    def _on_release(self) -> None:
        if self.releases_at_once:
            self._send_releases()

    def _send_releases(self) -> None:
        # A finalizer calls this, perhaps on a thread that holds the lock already, so it must not
        # wait for it. The holder checks again after releasing it, so no release is left behind.
        with contextlib.suppress(OSError):  # the peer has ended, and its arena with it
            while self.tracker.has_releases and self._send_lock.acquire(blocking=False):
                try:
                    self._send(MemoryFrame(), None)
                finally:
                    self._send_lock.release()


def _map(descriptor: int, size: int) -> ReceivedSegment | UnavailableError:
    try:
        return ReceivedSegment(descriptor, size)
    except (OSError, MemoryError) as error:
        lack = resource_error(error)
        if lack is None:
            raise
        return lack
