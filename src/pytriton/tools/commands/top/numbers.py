# SPDX-License-Identifier: Apache-2.0
"""Numbers in few characters, with the digits that matter."""

from __future__ import annotations

_NONE = "-"


def rate_text(value: float | None) -> str:
    """Returns how often something happens each second: 0, 0.5, 12.3, 1234, 56.7k."""
    if value is None:
        return _NONE
    if value >= 10_000:
        return f"{value / 1000:.1f}k"
    if value >= 100 or value == 0:
        return f"{value:.0f}"
    return f"{value:.1f}"


def milliseconds_text(value: float | None) -> str:
    """Returns a duration: 0.42ms, 4.2ms, 123ms, 4.5s."""
    if value is None:
        return _NONE
    if value >= 9_999.5:
        return f"{value / 1000:.0f}s"
    if value >= 999.5:
        return f"{value / 1000:.1f}s"
    if value >= 99.5:
        return f"{value:.0f}ms"
    return f"{value:.1f}ms" if value >= 0.995 else f"{value:.2f}ms"


def count_text(value: float | None) -> str:
    """Returns a number of things: 12, 12,345."""
    return _NONE if value is None else f"{value:,.0f}"


def batch_text(value: float | None) -> str:
    """Returns an average size of batches: 1, 3.5, 128."""
    if value is None:
        return _NONE
    return f"{value:.0f}" if value >= 99.5 or value == int(value) else f"{value:.1f}"


def share_text(value: float | None) -> str:
    """Returns a share from 0 to 1 as a percentage."""
    return _NONE if value is None else f"{value * 100:.0f}%"


def size_text(value: float | None) -> str:
    """Returns an amount of memory: 57 MB, 3.2 GB."""
    if value is None:
        return _NONE
    if value >= 1e9:
        return f"{value / 1e9:.1f} GB"
    return f"{value / 1e6:.0f} MB"


def age_text(seconds: float) -> str:
    """Returns a long time: 12 s, 5 min, 3 h 12 min, 4 days 2 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 24:
        return f"{hours} h {minutes % 60} min"
    days = hours // 24
    return f"{days} day{'s' if days > 1 else ''} {hours % 24} h"
