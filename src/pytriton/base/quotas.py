# SPDX-License-Identifier: Apache-2.0
"""How much the principals of a server may ask for: records that travel between processes."""

from __future__ import annotations

import msgspec


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one principal for the models that a pattern names; None: there is none."""

    models: tuple[str, ...] = ("*",)  # patterns of fnmatch
    requests_per_s: float | None = None
    burst: float | None = None  # requests at once; None: those of one second
    tokens_per_s: float | None = None
    bytes_per_s: float | None = None
    concurrent: int | None = None  # requests under way


class PrincipalQuotas(msgspec.Struct, frozen=True, kw_only=True):
    """What one principal may ask for, and its weight when models have more than they can do."""

    weight: float = 1.0
    quotas: tuple[Quota, ...] = ()
