# SPDX-License-Identifier: Apache-2.0
"""Pages that are one file: tables and pictures, readable in light and dark, without scripts."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence

_STYLE = """\
:root{color-scheme:light dark;--paper:#fff;--ink:#1f2933;--soft:#5b6770;--grid:#d9dee3;
--card:#f6f8fa;--good:#00734f;--bad:#a63d00;--accent:#0072b2}
@media(prefers-color-scheme:dark){:root{--paper:#16191d;--ink:#e4e8ec;--soft:#9aa5b1;--grid:#3a424b;
--card:#1f242a;--good:#4cc99a;--bad:#ff9a5c;--accent:#56b4e9;--c0:#4aa8e0;--c1:#f0b429;
--c2:#2fc197;--c4:#f07f3c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1200px;padding:2rem 1.25rem 4rem;
background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.7rem;margin:0 0 .2rem;letter-spacing:-.01em}
h2{font-size:1.15rem;margin:2.4rem 0 .7rem}
p{margin:.3rem 0;max-width:75ch}.soft{color:var(--soft)}
.tiles{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.4rem 0 0;padding:0;list-style:none}
.tiles li{background:var(--card);border-radius:8px;padding:.7rem 1rem;min-width:10.5rem}
.tiles b{display:block;font-size:1.45rem;font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.tiles span{color:var(--soft);font-size:.85rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:1rem}
figure{margin:0;background:var(--card);border-radius:8px;padding:.6rem}
figure svg{display:block;width:100%;height:auto;font-family:inherit;--paper:var(--card)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem;min-width:50%}
th,td{text-align:right;padding:.35rem .8rem;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}
thead th{color:var(--soft);font-weight:600}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
.note{border-left:3px solid var(--bad);padding:.1rem .8rem;margin:.6rem 0}
pre{background:var(--card);border-radius:8px;padding:.8rem 1rem;overflow-x:auto;font-size:.88rem}
details{margin-top:.8rem}summary{cursor:pointer;color:var(--accent)}
@media print{body{max-width:none}figure,.tiles li{break-inside:avoid}}
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A text with a judgement: good, bad, or none."""

    text: str
    judgement: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows below a heading."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: texts, notes that should not be missed, a table, pictures, code.

    Attributes:
        pictures: SVG texts.
        is_folded: Whether a click opens it.
    """

    title: str
    texts: Sequence[str] = ()
    notes: Sequence[str] = ()
    table: Table | None = None
    pictures: Sequence[str] = ()
    code: str = ""
    is_folded: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        tiles: The few numbers that matter most, each with what it is.
    """

    title: str
    subtitle: str
    tiles: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()


def page_html(page: Page) -> str:
    """The page as one file."""
    tiles = "".join(
        f"<li><b>{html.escape(value)}</b><span>{html.escape(what)}</span></li>"
        for value, what in page.tiles
    )
    sections = "\n".join(_section(section, number) for number, section in enumerate(page.sections))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{html.escape(page.title)}</title>
<style>{_STYLE}</style></head>
<body>
<h1>{html.escape(page.title)}</h1>
<p class="soft">{html.escape(page.subtitle)}</p>
{f'<ul class="tiles">{tiles}</ul>' if tiles else ""}
{sections}
</body></html>
"""


def _section(section: Section, number: int) -> str:
    parts = [f"<p>{html.escape(text)}</p>" for text in section.texts]
    parts += [f'<p class="note">{html.escape(text)}</p>' for text in section.notes]
    if section.table is not None:
        parts.append(_table(section.table))
    if section.pictures:
        figures = "".join(
            f"<figure>{_own_ids(svg, f's{number}p{index}')}</figure>"
            for index, svg in enumerate(section.pictures)
        )
        parts.append(f'<div class="plots">{figures}</div>')
    if section.code:
        parts.append(f"<pre>{html.escape(section.code)}</pre>")
    inside = "\n".join(parts)
    if section.is_folded:
        title = html.escape(section.title)
        return f"<details><summary>{title}</summary>\n{inside}\n</details>"
    heading = f"<h2>{html.escape(section.title)}</h2>\n" if section.title else ""
    return f"<section>{heading}{inside}</section>"


def _own_ids(svg: str, prefix: str) -> str:
    """Let pictures of one page have different ids, as their clip paths are named by them."""
    return (
        svg.replace(' id="', f' id="{prefix}')
        .replace('"#', f'"#{prefix}')
        .replace("url(#", f"url(#{prefix}")
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in table.heading)
    rows = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in table.rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        "</div>"
    )


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return f"<td>{html.escape(cell)}</td>"
    return f'<td class="{html.escape(cell.judgement)}">{html.escape(cell.text)}</td>'
