# SPDX-License-Identifier: Apache-2.0
"""What a server holds for one worker, whose code it does not know; no I/O.

A worker may be broken or hostile. So all that grows with what it sends, or does not read, has a
limit here, far above what models need. A worker that passes one of them breaks the rules of its
channel, which ends it; other models do not notice.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from pytriton.base.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytriton.runtime.transport.memory import ReceivedSegment
    from pytriton.runtime.transport.refs import SegmentRef

# One message: records may have whole files, and larger tensors are in shared memory.
MAX_MESSAGE_BYTES = 65 << 20
# Messages of which a part has come, of all connections together.
MAX_PARTIAL_BYTES = 4 * MAX_MESSAGE_BYTES
MAX_UNREAD_BYTES = 256 << 20  # of messages to it
# A worker's arena has up to 8 GiB, and tells that segments are gone with those that replace them.
MAX_MAPPED_BYTES = 16 << 30
MAX_SEGMENTS = 4096
# Its blocks that this process has released, and that it was not told about: as many as fit there.
MAX_RELEASES = 1 << 18
MAX_CALLS = 10_000  # of other models and of services
MAX_CALL_BYTES = 256 << 20  # of the inputs of calls, beside those in its own shared memory
_MAX_TEXT = 400  # of what is said about a message


class ProtocolError(ValueError):
    """A message of the peer that breaks the rules of its channel, or contradicts earlier ones.

    The text says what was expected, and what came. It may quote the peer, so a long one is cut.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_TEXT:
            text = f"{text[: _MAX_TEXT // 2]} ... {text[-_MAX_TEXT // 2 :]}"
        super().__init__(text)


class PeerAccount:
    """What is held for one worker, over its channel and those of the processes that it forked."""

    __slots__ = ("_segments", "call_bytes", "calls", "partial_bytes", "unread_bytes")

    def __init__(self) -> None:
        self.partial_bytes = 0
        self.unread_bytes = 0
        self.calls = 0
        self.call_bytes = 0
        self._segments: weakref.WeakSet[ReceivedSegment] = weakref.WeakSet()

    def add_partial(self, size: int, message_bytes: int) -> None:
        """Count bytes of a message that is not complete, and of which so many have come."""
        self.partial_bytes += size
        if message_bytes > MAX_MESSAGE_BYTES or self.partial_bytes > MAX_PARTIAL_BYTES:
            raise ProtocolError(
                f"expected messages of at most {MAX_MESSAGE_BYTES} bytes, got {message_bytes} of "
                f"one, and {self.partial_bytes} of all that are not complete"
            )

    def add_unread(self, size: int) -> None:
        """Count bytes that wait until the peer reads."""
        unread_bytes = self.unread_bytes + size
        if unread_bytes > MAX_UNREAD_BYTES:
            raise ProtocolError(
                f"expected that it reads what it is sent, got {unread_bytes} unread bytes, of at "
                f"most {MAX_UNREAD_BYTES}"
            )
        self.unread_bytes = unread_bytes

    def check_segments(self, refs: Sequence[SegmentRef]) -> None:
        """Refuse shared memory of the peer before it is mapped, if that would be too much."""
        size = sum(ref.size for ref in refs) + sum(each.size for each in self._segments)
        count = len(refs) + len(self._segments)
        if size > MAX_MAPPED_BYTES or count > MAX_SEGMENTS:
            raise ProtocolError(
                f"expected at most {MAX_SEGMENTS} segments of {MAX_MAPPED_BYTES} bytes together, "
                f"got {count} of {size}"
            )

    def add_segments(self, segments: Iterable[ReceivedSegment | UnavailableError]) -> None:
        """Count segments until they are unmapped, and no errors in their place."""
        for segment in segments:
            if not isinstance(segment, UnavailableError):
                self._segments.add(segment)

    def add_call(self, size: int) -> None:
        """Count a call whose inputs have so many bytes in its message."""
        calls, call_bytes = self.calls + 1, self.call_bytes + size
        if calls > MAX_CALLS or call_bytes > MAX_CALL_BYTES:
            raise ProtocolError(
                f"expected at most {MAX_CALLS} open calls with inputs of {MAX_CALL_BYTES} bytes, "
                f"got {calls} with {call_bytes}"
            )
        self.calls, self.call_bytes = calls, call_bytes

    def end_call(self, size: int) -> None:
        """Forget a call that is over."""
        self.calls -= 1
        self.call_bytes -= size

    def __repr__(self) -> str:
        return (
            f"<PeerAccount partial={self.partial_bytes} unread={self.unread_bytes} "
            f"calls={self.calls} segments={len(self._segments)}>"
        )
