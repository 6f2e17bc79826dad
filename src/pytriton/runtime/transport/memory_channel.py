# SPDX-License-Identifier: Apache-2.0
"""A channel between processes of one machine: small tensors inside the message, large ones shared.

Both ends use the same classes. Messages are sent over a Unix socket, together with file descriptors
of memory. `BlockTracker` knows which blocks are in use: those that the peer may still read (lent),
of our arena or, if they were forwarded, of a third process's arena; the peer's segments that are
mapped here; and the peer's blocks that this process has stopped reading. Changes are sent along
with the next message.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from pytriton.base.errors import UnavailableError, resource_error
from pytriton.runtime.transport.arena import RemoteBlock, block_bytes
from pytriton.runtime.transport.frames import (
    MemoryFrame,
    decode_frame,
    decode_worker_frame,
    encode_frame,
)
from pytriton.runtime.transport.link import make_link
from pytriton.runtime.transport.memory import ReceivedSegment, observers
from pytriton.runtime.transport.payload import Payload, Received
from pytriton.runtime.transport.peer_account import MAX_RELEASES, ProtocolError
from pytriton.runtime.transport.refs import BlockRef, MemoryUpdate, SegmentRef

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pytriton.runtime.transport.arena import Arena, Block
    from pytriton.runtime.transport.frames import Frame
    from pytriton.runtime.transport.memory import Segment
    from pytriton.runtime.transport.peer_account import PeerAccount

# Per message; the rest follows with the next one, so that messages stay smaller than a packet.
_MAX_RELEASES = 2000
_NO_BLOCKS: dict[int, NDArray[np.uint8]] = {}


def _do_nothing() -> None:
    """Ignore a release."""


class _PartialBlocks(dict[int, "NDArray[np.uint8]"]):
    """The blocks of a message, without those whose segment could not be mapped."""

    def __init__(self, blocks: Mapping[int, NDArray[np.uint8]], reason: str) -> None:
        super().__init__(blocks)
        self._reason = reason

    def __bool__(self) -> bool:
        return True  # also if all of them are missing

    def __missing__(self, block_id: int) -> NDArray[np.uint8]:
        raise UnavailableError(f"a tensor in shared memory could not be read: {self._reason}")


class BlockTracker:
    """The shared memory of a channel, as one of its two ends sees it.

    Args:
        on_release: Called when there is a release to send to the peer, on the thread that dropped
            the last array of the block.
        peer_gives_up_blocks: Whether the peer reads its blocks no more once it has sent them.
    """

    def __init__(
        self, on_release: Callable[[], None], *, peer_gives_up_blocks: bool = False
    ) -> None:
        self._peer_gives_up_blocks = peer_gives_up_blocks
        self.has_update = False  # there is an update to send; set after the update was queued
        self._on_release = on_release
        # Reentrant, because a finalizer may run wherever memory is allocated, and send a release.
        self._lock = threading.RLock()
        self._lent: dict[int, list[Block | RemoteBlock]] = {}  # one reference per use by the peer
        self._known_segments: set[int] = set()  # segments that the peer has mapped
        self._forwarded: dict[int, weakref.ref[Segment | ReceivedSegment]] = {}
        self._dropped_segments: deque[int] = deque()
        self._mappings: dict[int, ReceivedSegment] = {}  # by the peer's id
        # The peer's segments that could not be mapped, with the reasons, and those of them that the
        # peer was not told about yet.
        self._unmapped: dict[int, str] = {}
        self._missing_segments: deque[int] = deque()
        self._released: deque[int] = deque()
        self._abandoned: deque[int] = deque()
        self._is_closed = False

    def check_integrity(self) -> None:
        """Raise AssertionError if the lists contradict each other. Changes nothing.

        Each lent block is listed under its own id, once for each use by the peer, and no two lent
        blocks of a segment overlap. A segment that the peer is told to unmap is not expected to be
        mapped there, and one of the peer is either mapped here or missing. A closed tracker has
        nothing. Not for use while another thread sends, or drops arrays of the peer.
        """
        extents: dict[int, list[tuple[int, int]]] = {}
        for block_id, references in self._lent.items():
            ids = {block.id for block in references}
            assert ids == {block_id}, f"the references to lent block {block_id} are to {ids}"
            block = references[0]
            extents.setdefault(block.segment.id, []).append((block.offset, block.size))
        for segment_id, lent in extents.items():
            for (start, size), (following, _) in itertools.pairwise(sorted(lent)):
                assert start + size <= following, (
                    f"lent blocks at {start} and {following} of segment {segment_id} overlap"
                )
        dropped = self._known_segments.intersection(self._dropped_segments)
        assert not dropped, f"the segments {dropped} are dropped, and count as mapped by the peer"
        both = self._mappings.keys() & self._unmapped.keys()
        assert not both, f"the peer's segments {both} are both mapped and missing"
        assert not self._is_closed or not (self._lent or self._mappings or self._known_segments), (
            f"the closed tracker still has {len(self._lent)} lent blocks"
        )

    @property
    def lent_count(self) -> int:
        """The number of blocks that the peer may still read."""
        return len(self._lent)

    @property
    def mapped_count(self) -> int:
        """The number of the peer's segments that are mapped here."""
        return len(self._mappings)

    @property
    def maps_memory(self) -> bool:
        """Whether memory of the peer is mapped here, or that of a third process there."""
        return bool(self._mappings or self._forwarded)

    @property
    def has_releases(self) -> bool:
        """Whether there are releases of the peer's blocks to send."""
        return bool(self._released or self._abandoned)

    def queue_dropped_segments(self, segments: Iterable[int]) -> None:
        """Queue a request to the peer to unmap segments, of those that it has mapped."""
        dropped = self._known_segments.intersection(segments)
        self._known_segments -= dropped
        if dropped:
            self._dropped_segments.extend(dropped)
            self.has_update = True

    def make_update(self, payload: Payload) -> tuple[MemoryUpdate, list[int]]:
        """Returns the update for a message with this payload, and the descriptors to send."""
        update = MemoryUpdate(returned_blocks=[block.owner_id for block in payload.returned_blocks])
        descriptors = []
        for block in payload.blocks:
            segment = block.segment
            if segment.id not in self._known_segments:
                # Its arena may be that of another channel, which drops it without telling us.
                is_foreign = isinstance(segment, ReceivedSegment) or block.is_unshared
                self._add_segment(segment, is_foreign=is_foreign)
                update.segments.append(SegmentRef(segment.id, segment.size))
                descriptors.append(segment.descriptor)
            # Before the message is sent: the peer may release the block at once.
            with self._lock:
                self._lent.setdefault(block.id, []).append(block)
            is_given = block.id not in payload.lent_ids
            update.blocks.append(BlockRef(block.id, segment.id, block.offset, block.size, is_given))
        self.has_update = False  # first: later entries may miss this update and set the flag again
        while self._dropped_segments:
            update.dropped_segments.append(self._dropped_segments.popleft())
        while self._missing_segments:
            update.missing_segments.append(self._missing_segments.popleft())
        if self._released:
            self._move(self._released, update.released_blocks, _MAX_RELEASES)
        if self._abandoned:
            room = _MAX_RELEASES - len(update.released_blocks)
            self._move(self._abandoned, update.abandoned_blocks, room)
        return update, descriptors

    def _move(self, queue: deque[int], sent: list[int], room: int) -> None:
        while queue and len(sent) < room:
            sent.append(queue.popleft())
        if queue:
            self.has_update = True

    def apply_update(
        self, update: MemoryUpdate, segments: Iterable[ReceivedSegment | UnavailableError]
    ) -> dict[int, NDArray[np.uint8]]:
        """Apply the peer's update; returns its message's blocks, with negative ids for ours.

        Reading a block whose segment could not be mapped raises UnavailableError. It counts as
        released, and the peer sends the segment again with the next message that uses it.
        """
        if update.segments or update.dropped_segments or update.missing_segments:
            self._apply_segments(update, segments)
        # Before the releases: a returned block must be referenced here before it is released.
        blocks: dict[int, NDArray[np.uint8]] = {}
        reason = ""
        for block_id in update.returned_blocks:
            blocks[-block_id] = block_bytes(self._references(block_id)[0])
        for block_id in update.released_blocks:
            self._remove_lent(block_id)
        for block_id in update.abandoned_blocks:
            self._remove_lent(block_id).abandon()
        # Last: these may use a segment that came with this message.
        if update.blocks:
            for observer in observers:
                observer.on_message()
            if len(self._released) > MAX_RELEASES:
                raise ProtocolError(f"expected at most {MAX_RELEASES} blocks, got more of no use")
        for block in update.blocks:
            if block.segment in self._unmapped:
                reason = self._unmapped[block.segment]
                self._release(block.id, is_abandoned=False)
                continue
            mapping = self._mapping_of(block)
            extent = (block.offset, block.size)
            remote = RemoteBlock(
                block.id,
                mapping,
                extent,
                self._release,
                is_given=block.is_given,
                is_unshared=self._peer_gives_up_blocks,
            )
            blocks[block.id] = block_bytes(remote)
        return _PartialBlocks(blocks, reason) if reason else blocks

    def _mapping_of(self, block: BlockRef) -> ReceivedSegment:
        """Returns where a block is; a wrong extent beyond it would kill this process."""
        mapping = self._mappings.get(block.segment)
        if mapping is None:
            raise ProtocolError(f"expected a block of a segment that was sent, got {block}")
        if block.offset < 0 or block.size < 0 or block.offset + block.size > mapping.size:
            raise ProtocolError(f"expected a block within {mapping.size} bytes, got {block}")
        return mapping

    def _apply_segments(
        self, update: MemoryUpdate, segments: Iterable[ReceivedSegment | UnavailableError]
    ) -> None:
        for ref, segment in zip(update.segments, segments, strict=True):
            if isinstance(segment, ReceivedSegment):
                # It may have come before, which only its first time counts.
                self._mappings.setdefault(ref.id, segment)
                self._unmapped.pop(ref.id, None)
            elif ref.id not in self._mappings:  # else an earlier message brought it
                self._unmapped[ref.id] = segment.message
                self._missing_segments.append(ref.id)
                self.has_update = True
        for segment_id in update.dropped_segments:
            self._mappings.pop(segment_id, None)
            self._unmapped.pop(segment_id, None)
        for segment_id in update.missing_segments:
            self._known_segments.discard(segment_id)
            self._forwarded.pop(segment_id, None)

    def close(self) -> None:
        """Abandon all lent blocks, because the peer can no longer release them."""
        self._is_closed = True
        self._on_release = _do_nothing  # breaks the cycle with the channel: both are freed at once
        with self._lock:
            lent, self._lent = self._lent, {}
        for references in lent.values():
            references[0].abandon()  # the peer may live on, and read them without a connection
        self._forwarded.clear()
        self._known_segments.clear()
        self._dropped_segments.clear()
        self._mappings.clear()  # arrays that are in use keep their mappings

    def _add_segment(self, segment: Segment | ReceivedSegment, *, is_foreign: bool) -> None:
        segment.is_shared = True
        self._known_segments.add(segment.id)
        if is_foreign:  # the peer is told when our mapping is gone
            segment_id = segment.id
            self._forwarded[segment_id] = weakref.ref(
                segment, lambda _: self._drop_forwarded(segment_id)
            )

    def _drop_forwarded(self, segment_id: int) -> None:
        # Runs wherever the last reference to the segment is dropped.
        self._forwarded.pop(segment_id, None)
        self._known_segments.discard(segment_id)
        if not self._is_closed:
            self._dropped_segments.append(segment_id)
            self.has_update = True

    def _references(self, block_id: int) -> list[Block | RemoteBlock]:
        references = self._lent.get(block_id)
        if references is None:
            raise ProtocolError(f"expected a block that was lent, got {block_id}")
        return references

    def _remove_lent(self, block_id: int) -> Block | RemoteBlock:
        with self._lock:
            references = self._references(block_id)
            block = references.pop()
            if not references:
                del self._lent[block_id]
        return block

    def _release(self, block_id: int, is_abandoned: bool) -> None:
        # Runs when the last array on the block is dropped, on any thread.
        if self._is_closed:
            return
        # Appending is atomic; the flag comes after it, or the update would miss the release.
        (self._abandoned if is_abandoned else self._released).append(block_id)
        self.has_update = True
        self._on_release()


class MemoryChannel:
    """One end of a connection between two processes that share memory; see `Channel`.

    Large tensors are in `arena`. If the peer is a front end, it only reads the blocks that it gets,
    and it reads its own blocks no more once it has sent them, so both kinds are forwarded between
    front ends and instances without a copy. A peer in a sandbox gets blocks of `arena` only.

    With an `account` the peer is a worker, whose messages are checked, and which is ended for what
    breaks a rule: reading and sending raise ProtocolError then.
    """

    def __init__(
        self,
        sock: socket.socket,
        arena: Arena,
        *,
        to_front_end: bool = False,
        to_sandbox: bool = False,
        account: PeerAccount | None = None,
    ) -> None:
        self._account = account
        self._decode: Callable[[bytearray], tuple[Frame, int]]
        self._decode = decode_frame if account is None else decode_worker_frame
        self.link = make_link(sock, account)
        # Descriptors of a worker that no message of it has told about.
        self._strays: Sequence[int] = () if account is None else self.link.descriptors
        self.fileno = sock.fileno  # -1 after `close`
        self.set_blocking = sock.setblocking
        self.take_descriptors = self.link.take_descriptors
        self.arena = arena
        self.tracker = BlockTracker(self._on_release, peer_gives_up_blocks=to_front_end)
        self.queue_dropped_segments = self.tracker.queue_dropped_segments
        arena.senders.add(self.tracker)
        self._forwards = to_front_end
        self._keeps_to_arena = to_sandbox
        self.releases_at_once = False
        self._send_lock = threading.Lock()

    def payload(self) -> Payload:
        """See `Channel`."""
        return Payload(self.arena, forwards=self._forwards, keeps_to_arena=self._keeps_to_arena)

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
        frame, start = self._decode(message)
        memory = frame.memory
        if memory is None:
            if self._strays:
                self._check_strays()
            return Received(frame, message, start, _NO_BLOCKS)
        segments = self._take_segments(memory.segments) if memory.segments else ()
        if self._strays:
            self._check_strays()
        blocks = self.tracker.apply_update(memory, segments)
        return Received(frame, message, start, blocks)

    def _check_strays(self) -> None:
        if self.link.has_read_ahead:
            return  # they may belong to the next message
        count = len(self.link.descriptors)
        raise ProtocolError(f"expected a file descriptor for each segment, got {count} more")

    @property
    def has_message(self) -> bool:
        """See `Channel`."""
        return self.link.has_message

    @property
    def has_failed(self) -> bool:
        """See `Channel`."""
        return self.link.has_failed

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

    @property
    def maps_memory(self) -> bool:
        """See `Channel`."""
        return self.tracker.maps_memory

    @property
    def has_memory_update(self) -> bool:
        """See `Channel`."""
        return self.tracker.has_update

    def send_memory_update(self) -> None:
        """See `Channel`."""
        if self.tracker.has_update:
            self.send(MemoryFrame())

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
        account = self._account
        if account is not None:
            account.check_segments(refs)
        try:
            descriptors = self.link.take_descriptors(len(refs))
        except UnavailableError as error:
            return [error] * len(refs)
        count = len(descriptors)
        # Each mapping owns its descriptor from the moment it is taken from the list.
        try:
            if count != len(refs):
                raise ProtocolError(f"expected {len(refs)} descriptors, got {count}")
            segments = [_map(descriptors.pop(0), ref.size) for ref in refs]
        except (ValueError, OSError) as error:
            raise ProtocolError(str(error)) from None
        else:
            if account is not None:
                account.add_segments(segments)
            return segments
        finally:
            for descriptor in descriptors:  # the rest, if one of them was refused
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
