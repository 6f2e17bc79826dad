# SPDX-License-Identifier: Apache-2.0
"""What every load returns and the table prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """One figure of one system.

    `higher_is_better` says how a ratio of two is to be read; `spread`, how far rounds lie apart:
    the largest figure less the smallest, as a share of the median.
    """

    row: str
    value: float
    unit: str
    higher_is_better: bool = True
    spread: float | None = None
