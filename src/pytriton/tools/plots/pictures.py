# SPDX-License-Identifier: Apache-2.0
"""Pictures of panels with lines, areas and bars, as PNG and as SVG for pages.

The only module that knows matplotlib, which is imported when a picture is drawn. What the panels
say is decided by those who make them. Colours are those that colour-blind people and printers keep
apart.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence
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

_WIDTH, _HEIGHT = 6.0, 3.5  # inches of a panel
_DPI = 110
_LEGEND_LETTERS = 68  # of the names in a row of a legend


def colour_of(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


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
        limits: Values with a text: lines across the diagram.
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
    x_ticks: Sequence[float] = ()


class PlotError(Exception):
    """A picture cannot be drawn; the text says what is missing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """A drawn picture."""

    figure: Any

    def png(self) -> bytes:
        """As PNG, on white."""
        out = io.BytesIO()
        with _matplotlib().rc_context(RULES):
            self.figure.savefig(out, format="png", dpi=_DPI, facecolor=PAPER)
        return _small_png(out)

    def svg(self) -> str:
        """As SVG without a background, whose ink has the colour of the text around it."""
        out = io.StringIO()
        with _matplotlib().rc_context(RULES):
            self.figure.savefig(
                out, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
            )
        return _for_pages(out.getvalue())


def draw(panels: Sequence[Panel], *, columns: int = 2, title: str = "") -> Picture:
    """Draw panels side by side.

    Raises:
        PlotError: matplotlib is not installed.
    """
    matplotlib = _matplotlib()
    with matplotlib.rc_context(RULES):
        from matplotlib.figure import Figure  # noqa: PLC0415  optional, as above

        columns = min(columns, len(panels))
        rows = -(-len(panels) // columns)
        figure: Any = Figure(
            figsize=(_WIDTH * columns, _HEIGHT * rows + (0.35 if title else 0)),
            layout="constrained",
        )
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.04, hspace=0.06)
        grid = figure.add_gridspec(rows, columns)
        for index, panel in enumerate(panels):
            row, column = divmod(index, columns)
            end = columns if index == len(panels) - 1 else column + 1  # the last one fills its row
            _draw_panel(figure.add_subplot(grid[row, column:end]), panel)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return Picture(figure)


def check_available() -> None:
    """Find out whether pictures can be drawn, before work is done for them.

    Raises:
        PlotError: matplotlib is not installed.
    """
    _matplotlib()


def _matplotlib() -> Any:
    try:
        import matplotlib as module  # noqa: ICN001, PLC0415  an optional dependency
    except ImportError:
        raise PlotError(
            "a plot needs matplotlib, which is not installed: pip install 'pytriton[plots]'"
        ) from None
    return module


def _draw_panel(ax: Any, panel: Panel) -> None:
    ax.set_title(panel.title)
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    if panel.bars:
        _draw_bars(ax, panel)
    for index, line in enumerate(panel.lines):
        colour = colour_of(line.colour if line.colour is not None else index)
        shape = "none" if line.is_points else "--" if line.is_dashed else "-"
        style = {"drawstyle": "steps-post"} if line.is_steps else {}
        has_markers = line.is_points or (not line.is_steps and len(line.x) <= 40)
        marker = "o" if has_markers else None
        ax.plot(
            line.x, line.y, linestyle=shape, color=colour, marker=marker, label=line.label, **style
        )
        if line.is_filled:
            step = "post" if line.is_steps else None
            ax.fill_between(line.x, line.y, step=step, color=colour, alpha=0.15, linewidth=0)
        for x, y, text in line.notes:
            ax.annotate(
                text, (x, y), xytext=(5, 5), textcoords="offset points", fontsize=8, color=colour
            )
        hollow = [at for at in line.hollow if at < len(line.x)]
        if hollow:
            ax.plot(
                [line.x[at] for at in hollow],
                [line.y[at] for at in hollow],
                "o", color=colour, markerfacecolor=PAPER, zorder=5,
            )  # fmt: skip
    for value, text in panel.limits:
        if panel.bars:
            ax.axvline(value, color=INK, linewidth=1, linestyle=":")
            ax.annotate(
                text, (value, 0), xycoords=("data", "axes fraction"), xytext=(3, 3),
                textcoords="offset points", fontsize=8,
            )  # fmt: skip
            continue
        ax.axhline(value, color=INK, linewidth=1, linestyle=":")
        ax.annotate(
            text, (1, value), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", ha="right", fontsize=8,
        )  # fmt: skip
    _finish(ax, panel)


def _draw_bars(ax: Any, panel: Panel) -> None:
    """Horizontal groups of bars, each with its value at its end."""
    width = 0.8 / len(panel.bars)
    limits = [value for value, _ in panel.limits]
    largest = max([*(value for group in panel.bars for value in group.values), *limits])
    for index, group in enumerate(panel.bars):
        places = [row + index * width - 0.4 + width / 2 for row in range(len(group.values))]
        ax.barh(places, group.values, width * 0.92, color=colour_of(index), label=group.label)
        for place, value, text in zip(places, group.values, group.texts, strict=True):
            ax.annotate(
                text, (value, place), xytext=(4, 0), textcoords="offset points", va="center",
                fontsize=8,
            )  # fmt: skip
    ax.set_yticks(range(len(panel.bar_names)), panel.bar_names)
    ax.invert_yaxis()
    ax.set_xlim(0, largest * 1.18 or 1.0)
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x", color=GRID)


def _finish(ax: Any, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415  as above

    plain = FuncFormatter(lambda value, _place: short_text(value))

    if panel.is_log_x:
        ax.set_xscale("log")
        if panel.x_ticks:
            ax.set_xticks(panel.x_ticks)
            ax.minorticks_off()
    elif panel.x_ticks:
        ax.set_xticks(panel.x_ticks)
    if panel.lines:
        top = max((y for line in panel.lines for y in line.y), default=1.0)
        ax.set_ylim(0, max([top, *(value for value, _ in panel.limits)]) * 1.06 or 1.0)
    ax.xaxis.set_major_formatter(plain)
    if panel.lines:
        ax.yaxis.set_major_formatter(plain)
    _add_legend(ax, panel)


def _add_legend(ax: Any, panel: Panel) -> None:
    """Name several lines or bars between the title and the diagram, where nothing is hidden."""
    labels = [line.label for line in panel.lines] + [group.label for group in panel.bars]
    count = len([label for label in labels if label])
    if count < 2:
        return
    columns = count
    while columns > 1 and max(map(len, labels)) * columns > _LEGEND_LETTERS:
        columns -= 1
    rows = -(-count // columns)
    ax.set_title(panel.title, pad=8 + 13.5 * rows)
    ax.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=columns, borderaxespad=0.2,
        handlelength=1.4, columnspacing=1.2, labelspacing=0.25,
    )  # fmt: skip


def short_text(value: float) -> str:
    """A number at an axis: thousands as k, millions as M."""
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.4g}{letter}"
    return f"{value:.4g}"


def _small_png(png: io.BytesIO) -> bytes:
    """A third of the size, with a palette: such pictures have few colours."""
    from PIL import Image  # noqa: PLC0415  comes with matplotlib

    small = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE).save(
            small, "png", optimize=True
        )
    return small.getvalue()


def _for_pages(svg: str) -> str:
    """Leave out what only files need, and let the page choose the ink."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    for colour, replacement in SVG_COLOURS.items():
        text = text.replace(colour, replacement)
    # Two decimals are finer than any screen.
    text = re.sub(r"(\d+\.\d{2})\d+", r"\1", text)
    return re.sub(r"\n\s*", "\n", text)
