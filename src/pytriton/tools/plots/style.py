# SPDX-License-Identifier: Apache-2.0
"""How pictures look: colours that colour-blind people and printers keep apart, thin rules."""

from __future__ import annotations

from typing import Any

# The inks of Okabe and Ito without yellow, which is too light on paper; ordered so that
# neighbours also differ in lightness. They are readable on white and on dark grey.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f")
INK = "#1f2933"
GRID = "#d9dee3"
PAPER = "#ffffff"
# What pages replace, so that one picture fits light and dark pages.
SVG_COLOURS = {
    INK: "currentColor",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
    **{colour: f"var(--c{index},{colour})" for index, colour in enumerate(_COLOURS)},
}

RULES: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",  # text stays text: smaller, and in the page's own font
    "svg.hashsalt": "pytriton",  # the same picture is the same file
    "figure.facecolor": "none",
}


def colour_of(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]
