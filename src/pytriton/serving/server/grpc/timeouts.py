# SPDX-License-Identifier: Apache-2.0
"""Decides when to ping an idle gRPC connection, and when to end a dead one; it has no clock."""

from __future__ import annotations

import enum
import random

from pytriton.serving.server.options.server_options import KeepaliveOptions

_MS = 1_000_000  # in nanoseconds
_MIN_TICK_MS = 10
_MAX_TICK_MS = 1000
_AGE_JITTER = 0.1  # so that connections that were opened together do not end together
_TWO_HOURS_NS = 7_200_000 * _MS


class Action(enum.Enum):
    """A step of keepalive or of connection ageing."""

    PING = enum.auto()
    ABORT = enum.auto()  # the client did not answer a ping
    GO_AWAY = enum.auto()  # the connection has reached its maximum age
    CLOSE = enum.auto()  # and its grace period is over


class Keepalive:
    """Watches one connection; `check` is called periodically."""

    __slots__ = (
        "_close_ns",
        "_go_away_ns",
        "_options",
        "_pinged_ns",
        "_pings_without_data",
        "_sent",
    )

    def __init__(self, options: KeepaliveOptions, now_ns: int) -> None:
        self._options = options
        self._pinged_ns = 0  # when the unanswered ping was sent; 0: there is none
        self._pings_without_data = 0
        self._sent = 0
        self._go_away_ns: int | None = None
        self._close_ns: int | None = None
        if options.max_connection_age_ms is not None:
            jitter = random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)  # noqa: S311  not a secret
            self._go_away_ns = now_ns + int(options.max_connection_age_ms * _MS * jitter)

    def check(self, now_ns: int, received_ns: int, sent: int, *, has_calls: bool) -> Action | None:
        """Returns the step to take now, if any.

        `received_ns` is when the client last sent data; `sent` grows with every part of a response.
        """
        return self._check_age(now_ns) or self._check_keepalive(
            now_ns, received_ns, sent, has_calls=has_calls
        )

    def _check_age(self, now_ns: int) -> Action | None:
        if self._go_away_ns is not None and now_ns >= self._go_away_ns:
            self._go_away_ns = None
            grace_ms = self._options.max_connection_age_grace_ms
            if grace_ms is not None:
                self._close_ns = now_ns + grace_ms * _MS
            return Action.GO_AWAY
        if self._close_ns is not None and now_ns >= self._close_ns:
            return Action.CLOSE
        return None

    def _check_keepalive(
        self, now_ns: int, received_ns: int, sent: int, *, has_calls: bool
    ) -> Action | None:
        options = self._options
        if self._pinged_ns:
            if received_ns >= self._pinged_ns:
                self._pinged_ns = 0
            elif now_ns - self._pinged_ns >= options.timeout_ms * _MS:
                return Action.ABORT
            else:
                return None
        if now_ns - received_ns < options.time_ms * _MS:
            return None
        if sent != self._sent:
            self._sent = sent
            self._pings_without_data = 0
        most = options.max_pings_without_data
        if not (has_calls or options.permit_without_calls) or 0 < most <= self._pings_without_data:
            return None
        self._pings_without_data += 1
        self._pinged_ns = now_ns
        return Action.PING


def tick_s(options: KeepaliveOptions) -> float:
    """Returns the interval between calls of `Keepalive.check`."""
    spans_ms = (
        options.time_ms,
        options.timeout_ms,
        options.max_connection_age_ms or _MAX_TICK_MS,
        options.max_connection_age_grace_ms or _MAX_TICK_MS,
    )
    return max(_MIN_TICK_MS, min(_MAX_TICK_MS, *spans_ms)) / 1000


def ping_intervals_ns(options: KeepaliveOptions) -> tuple[int, int]:
    """Returns the smallest intervals between a client's pings: with open calls, and without."""
    interval_ns = options.min_recv_ping_interval_without_data_ms * _MS
    return interval_ns, interval_ns if options.permit_without_calls else _TWO_HOURS_NS
