# SPDX-License-Identifier: Apache-2.0
"""Rate limits against abusive peers: for resets, for frames without effect and for pings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.wire.http2.limits import Limits

_SECOND_NS = 1_000_000_000


class TokenBucket:
    """A token bucket that holds `burst` tokens and gains `per_second`."""

    __slots__ = ("_burst", "_left", "_per_second", "_updated_ns")

    def __init__(self, burst: int, per_second: int) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._updated_ns = 0

    def use(self, now_ns: int) -> bool:
        """Take a token; False if none is left."""
        regained = (now_ns - self._updated_ns) * self._per_second / _SECOND_NS
        self._left = min(float(self._burst), self._left + max(0.0, regained))
        self._updated_ns = now_ns
        if self._left < 1:
            return False
        self._left -= 1
        return True


class PingPolicy:
    """gRPC's limit on pings that come too early; sending HEADERS or DATA restarts the count."""

    __slots__ = ("_activity", "_last_ns", "_limits", "_strikes")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._strikes = 0
        self._last_ns: int | None = None
        self._activity = 0

    def allows(self, now_ns: int, activity: int, *, is_idle: bool) -> bool:
        """Count a ping of the peer; False if it exceeds the limit.

        Args:
            now_ns: When the ping was received.
            activity: A counter of the HEADERS and DATA sent; a new value restarts the count.
            is_idle: Whether no stream is open.
        """
        if activity != self._activity:
            self._activity = activity
            self._strikes = 0
            self._last_ns = None
        limits = self._limits
        interval_ns = limits.min_idle_ping_interval_ns if is_idle else limits.min_ping_interval_ns
        is_early = self._last_ns is not None and now_ns - self._last_ns < interval_ns
        self._last_ns = now_ns
        self._strikes += is_early
        return self._strikes <= limits.max_ping_strikes
