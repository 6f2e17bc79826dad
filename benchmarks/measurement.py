# SPDX-License-Identifier: Apache-2.0
"""What every load returns and the table prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """One figure of one system; `higher_is_better` says how a ratio of two is to be read."""

    row: str
    value: float
    unit: str
    higher_is_better: bool = True
