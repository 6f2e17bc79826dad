# SPDX-License-Identifier: Apache-2.0
"""Flow control for decoupled models: how far a model may run ahead of its clients.

The number of responses, and of their bytes, that a model has sent and the client has not consumed
is limited. `Credit` frames tell the model about consumed responses. There is no thread, socket or
clock here.
"""

from __future__ import annotations

from collections import deque

# The number of responses to one request that may be unconsumed, and the number of unconsumed bytes
# at which a model waits although it has credit left. A client that does not read costs the server
# no more than this.
RESPONSE_WINDOW = 64
RESPONSE_WINDOW_BYTES = 4 << 20
# Credit is granted after this number of responses was consumed: half of the window, so that the
# model has the other half to go on with while the frame is on its way.
GRANT_RESPONSES = RESPONSE_WINDOW // 2
# For larger responses credit is granted one by one, as the window also limits bytes: waiting for
# more responses could block it for ever.
LARGE_RESPONSE_BYTES = RESPONSE_WINDOW_BYTES // RESPONSE_WINDOW


class CreditWindow:
    """The responses to one request that were sent and that the client has not consumed.

    Responses and bytes have two counters each, and each counter has one writer: the thread that
    sends, or the thread that reads credit. So no lock is needed: a reader may see a counter that is
    too old, and then believes that the window is fuller than it is.
    """

    __slots__ = ("_sent", "_sent_bytes", "_sizes", "_taken", "_taken_bytes")

    def __init__(self) -> None:
        self._sent = self._sent_bytes = 0
        self._taken = self._taken_bytes = 0
        self._sizes: deque[int] = deque()

    @property
    def has_sent(self) -> bool:
        """Whether a response was sent already."""
        return self._sent > 0

    @property
    def is_open(self) -> bool:
        """Whether another response may be sent."""
        # Asked before a response, whose size is not known yet: the last one may exceed the window,
        # so that a response of any size can be sent.
        return (
            self._sent - self._taken < RESPONSE_WINDOW
            and self._sent_bytes - self._taken_bytes < RESPONSE_WINDOW_BYTES
        )

    @property
    def is_open_after_first(self) -> bool:
        """Like `is_open`, but the second response waits until the first one was consumed.

        Otherwise a fast generator would take CPU time from the threads that deliver the first one.
        """
        sent, taken = self._sent, self._taken
        return sent == taken or (
            taken > 0
            and sent - taken < RESPONSE_WINDOW
            and self._sent_bytes - self._taken_bytes < RESPONSE_WINDOW_BYTES
        )

    def spend(self, size: int) -> None:
        """Count a response of `size` bytes as sent."""
        self._sizes.append(size)
        self._sent += 1
        self._sent_bytes += size

    def spend_all(self, sizes: list[int]) -> None:
        """Count responses of these sizes in bytes as sent."""
        self._sizes.extend(sizes)
        self._sent += len(sizes)
        self._sent_bytes += sum(sizes)

    def add(self, count: int) -> None:
        """Count `count` responses as consumed by the client."""
        sizes = self._sizes
        # A peer that grants more than was sent must not widen the window.
        count = min(count, len(sizes))
        self._taken_bytes += sum([sizes.popleft() for _ in range(count)])
        self._taken += count

    def check_integrity(self) -> None:
        """Raise AssertionError if the counters contradict each other. Changes nothing.

        Sent less consumed responses are those whose sizes are kept, in number and in bytes, and no
        response is consumed twice. Not for use while another thread sends or adds credit.
        """
        count, size = self._sent - self._taken, self._sent_bytes - self._taken_bytes
        sizes = list(self._sizes)
        assert count == len(sizes), f"{count} responses are open, and {len(sizes)} sizes are kept"
        assert size == sum(sizes), f"{size} bytes are open, and the kept sizes are {sum(sizes)}"
        assert self._taken >= 0, f"{self._taken} responses were consumed"


def is_grant_due(taken_count: int, size: int) -> bool:
    """Returns whether to grant credit now for `taken_count` responses, the last of `size` bytes."""
    return taken_count >= GRANT_RESPONSES or size >= LARGE_RESPONSE_BYTES
