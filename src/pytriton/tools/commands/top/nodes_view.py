# SPDX-License-Identifier: Apache-2.0
"""Draws the nodes of a cluster with the instances on them; no terminal is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from pytriton.tools.commands.top import numbers
from pytriton.tools.commands.top.rows import Row
from pytriton.tools.commands.top.samples import (
    RUNNING,
    SERVER,
    WAITING,
    ClusterReading,
    NodeReading,
)

_LAST = (SERVER, WAITING)  # these come after the nodes


def cluster_line(rows: Iterable[Row], cluster: ClusterReading) -> Text:
    """Returns the line about the cluster for the head of every screen."""
    places = [place for row in rows for place in row.places]
    running = sum(place.count for place in places if place.state == RUNNING)
    waiting = sum(place.count for place in places if place.state != RUNNING)
    nodes = len(cluster.nodes)
    text = Text(f" cluster {nodes} node{'' if nodes == 1 else 's'}")
    if cluster.unreachable_s:
        text.append(f" {_seen(cluster)}", style="bold red")
    text.append(f"   instances {running} run")
    if waiting:
        text.append(f"   {waiting} not yet", style="bold yellow")
    if not cluster.launcher_is_up and not cluster.unreachable_s:
        text.append("   the launcher is down, so none can be started", style="bold red")
    return text


def node_lines(rows: Sequence[Row], cluster: ClusterReading | None) -> list[str]:
    """Returns a table of the nodes; empty for a server without a cluster."""
    if cluster is None:
        return []
    models = _models_by_node(rows)
    names = [*sorted({*cluster.nodes, *models} - {*_LAST}), *(n for n in _LAST if n in models)]
    resources = sorted({name for node in cluster.nodes.values() for name in node.total})
    lines = [("NODE", "PROC", *resources, "MODELS")]
    for name in names:
        node = cluster.nodes.get(name, NodeReading())
        processes = str(node.processes) if name in cluster.nodes else "-"
        amounts = [_amount(node, resource) for resource in resources]
        lines.append((name, processes, *amounts, ", ".join(models.get(name, ())) or "-"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [_line(cells, widths) for cells in lines]
    if cluster.unreachable_s:
        table.append(f"The nodes are those that were {_seen(cluster)}")
    return table


def _seen(cluster: ClusterReading) -> str:
    """Returns from when the nodes of a cluster are that does not answer."""
    return (
        f"last seen {numbers.age_text(cluster.unreachable_s)} ago, as the cluster does not answer"
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *middle, last = cells
    texts = [f"{text:>{width}}" for text, width in zip(middle, widths[1:-1], strict=True)]
    return "  ".join([f"{name:<{widths[0]}}", *texts, last])


def _models_by_node(rows: Iterable[Row]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        for place in row.places:
            state = "" if place.state == RUNNING else f" {place.state}"
            found.setdefault(place.where, []).append(f"{row.name} {place.count}{state}")
    return found


def _amount(node: NodeReading, resource: str) -> str:
    if resource not in node.total:
        return "-"
    used, total = node.used(resource), node.total[resource]
    return f"{total:g}" if used is None else f"{used:g} of {total:g}"
