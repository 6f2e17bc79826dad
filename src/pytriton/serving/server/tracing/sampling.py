# SPDX-License-Identifier: Apache-2.0
"""Which requests are traced while one setting lasts."""

from __future__ import annotations


class TraceSampling:
    """Selects one of every `rate` requests that have no trace headers of their client.

    Args:
        rate: One of this many requests; 0: none.
        count: The number of requests at most; -1: no limit.
        log_frequency: The number of traces in one file; 0: all are in one.
        has_timestamps: Whether traces tell times.
        has_tensors: Whether traces tell the tensors of requests and responses.
    """

    __slots__ = (
        "_seen", "count", "has_tensors", "has_timestamps", "left", "log_frequency", "rate"
    )  # fmt: skip

    def __init__(
        self,
        rate: int,
        count: int,
        *,
        log_frequency: int = 0,
        has_timestamps: bool = True,
        has_tensors: bool = False,
    ) -> None:
        self.rate = rate
        self.count = count
        self.left = count
        self.log_frequency = log_frequency
        self.has_timestamps = has_timestamps
        self.has_tensors = has_tensors
        self._seen = 0

    def takes_next(self) -> bool:
        """Returns whether to trace the next request."""
        self._seen += 1
        if not self.rate or self._seen % self.rate:
            return False
        return self.takes_one()

    def takes_one(self) -> bool:
        """Returns whether a request may be traced that was selected elsewhere."""
        if not self.left:
            return False
        if self.left > 0:
            self.left -= 1
        return True

    def passes_next(self) -> bool:
        """Count a request that is not traced; returns False, and counts nothing, if it is."""
        seen = self._seen + 1
        if self.rate and self.left and not seen % self.rate:
            return False
        self._seen = seen
        return True
