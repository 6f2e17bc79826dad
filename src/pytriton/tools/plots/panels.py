# SPDX-License-Identifier: Apache-2.0
"""What a picture shows: panels with lines or groups of bars."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of a panel.

    Attributes:
        label: Its name in the legend.
        hollow: The indices of points that are less sure than the others.
        notes: Texts at places: x, y, text.
        colour: The number of its colour; None: that of its place.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    is_dashed: bool = False
    is_steps: bool = False
    is_filled: bool = False
    is_points: bool = False
    hollow: Sequence[int] = ()
    notes: Sequence[tuple[float, float, str]] = ()
    colour: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Bars:
    """A bar in each row of a panel, with the text at its end."""

    label: str
    values: Sequence[float]
    texts: Sequence[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """One diagram.

    Attributes:
        bar_names: The names of the rows, if it has bars.
        limits: Horizontal lines with a text.
        x_ticks: The places of the ticks; empty: chosen by the scale.
    """

    title: str
    x_label: str = ""
    y_label: str = ""
    lines: Sequence[Line] = ()
    bars: Sequence[Bars] = ()
    bar_names: Sequence[str] = ()
    limits: Sequence[tuple[float, str]] = ()
    is_log_x: bool = False
    is_log_y: bool = False
    x_ticks: Sequence[float] = ()
    x_limits: tuple[float, float] | None = None
