# SPDX-License-Identifier: Apache-2.0
"""Slows down addresses that send wrong credentials; no I/O, and time is an argument.

Keys cannot be guessed. This bounds what those who try cost: signatures to verify, and lines of
logs. An address whose failures in a minute reach a limit has to wait, longer with each further
failure. Only credentials that the server has not accepted before have to wait: others behind the
same address, such as that of a proxy, go on. `failure_feed.py` beside it shares the failures among
processes.
"""

from __future__ import annotations

import ipaddress

WINDOW_S = 60.0
MAX_WAIT_S = 60.0
MAX_ADDRESSES = 4096
_DOUBLINGS = 7  # after which a wait is not longer any more


class _Failures:
    """The failures of one address."""

    __slots__ = ("blocked_until_s", "count", "first_s", "wait_s")

    def __init__(self, now_s: float) -> None:
        self.first_s = now_s
        self.count = 0
        self.wait_s = 0.0
        self.blocked_until_s = now_s

    def is_over(self, now_s: float) -> bool:
        """Returns whether they do not count any more."""
        return now_s - max(self.first_s, self.blocked_until_s) > WINDOW_S


class Throttle:
    """The failures of all addresses, of which only so many are kept."""

    def __init__(self, max_failures: int) -> None:
        self._max_failures = max_failures
        self._by_address: dict[str, _Failures] = {}  # those that failed last are at its end

    def wait_s(self, address: str, now_s: float) -> float:
        """Returns how long an address has to wait before another try; 0: it may try now."""
        failures = self._by_address.get(address_group(address)) if self._by_address else None
        return 0.0 if failures is None else max(0.0, failures.blocked_until_s - now_s)

    def on_failure(self, address: str, now_s: float, count: int = 1) -> None:
        """Count wrong credentials; those of another process come together."""
        if not self._max_failures:
            return
        group = address_group(address)
        failures = self._by_address.pop(group, None)
        if failures is None or failures.is_over(now_s):
            failures = _Failures(now_s)
        failures.count += count
        beyond = failures.count - self._max_failures + 1
        if beyond > 0:
            for _ in range(min(count, beyond, _DOUBLINGS)):
                failures.wait_s = min(MAX_WAIT_S, failures.wait_s * 2 or 1.0)
            failures.blocked_until_s = now_s + failures.wait_s
        if len(self._by_address) >= MAX_ADDRESSES:
            del self._by_address[next(iter(self._by_address))]
        self._by_address[group] = failures

    def counts(self, now_s: float) -> dict[str, int]:
        """Returns the failures that count now, for a process that begins."""
        return {
            address: failures.count
            for address, failures in self._by_address.items()
            if not failures.is_over(now_s)
        }

    def __len__(self) -> int:
        return len(self._by_address)


def address_group(address: str) -> str:
    """Returns what counts as one address: one client has at least 2^64 addresses of IPv6."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))
