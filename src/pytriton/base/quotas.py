# SPDX-License-Identifier: Apache-2.0
"""How much the principals of a server may ask for: records that travel between processes.

`pytriton.serving.engine.quotas` enforces them.
"""

from __future__ import annotations

import math

import msgspec


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one principal for the models that a pattern names; None: there is none."""

    models: tuple[str, ...] = ("*",)  # patterns of fnmatch
    requests_per_s: float | None = None
    burst: float | None = None  # requests at once; None: those of one second
    tokens_per_s: float | None = None
    bytes_per_s: float | None = None
    concurrent: int | None = None  # requests under way

    def __post_init__(self) -> None:
        """Raise ValueError for limits that nobody could keep."""
        for name in ("requests_per_s", "tokens_per_s", "bytes_per_s"):
            _check_positive(name, getattr(self, name))
        for name in ("burst", "concurrent"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise ValueError(f"expected {name} of at least 1, got {value}")
        if self.burst is not None and self.requests_per_s is None:
            raise ValueError("expected requests_per_s beside burst, got none")


class PrincipalQuotas(msgspec.Struct, frozen=True, kw_only=True):
    """What one principal may ask for, and its weight when models have more than they can do."""

    weight: float = 1.0
    quotas: tuple[Quota, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a weight that gives no share."""
        _check_positive("weight", self.weight)


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"expected {name} above 0, got {value}")
