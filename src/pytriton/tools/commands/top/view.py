# SPDX-License-Identifier: Apache-2.0
"""Draws the screens: lines of text that fit a width and a height; no terminal is needed.

Numbers have few characters and the digits that matter.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.text import Text

from pytriton.base.security import TOKEN_VARIABLE
from pytriton.tools.commands.model_cards import ModelCard
from pytriton.tools.commands.models import details_text
from pytriton.tools.commands.top.failures import FailuresReading, failure_lines
from pytriton.tools.commands.top.rows import RateHistory, Row, RowOrder, ordered, sparkline, total
from pytriton.tools.commands.top.samples import (
    RUNNING,
    SERVER,
    WAITING,
    ClusterReading,
    Key,
    MetricsSample,
    NodeReading,
    places_text,
)
from pytriton.tools.commands.top.state import TopScreen, ViewState

_NONE = "-"

_LAST = (SERVER, WAITING)  # these come after the nodes

_STATES = {"READY": "green", "UNAVAILABLE": "red", "LOADING": "yellow", "UNLOADING": "yellow"}
_SHORT = {"UNAVAILABLE": "UNAVAIL."}
_NOT_SERVED = "NO INST."
_MIN_NAME = 12
_TREND = 12  # characters of the sparkline in a row
_HELP = """\
q          quit
↑ ↓ j k    select a model; page up and page down go faster
Enter      details of the selected model; Enter or Esc goes back
s          sort by the next column: name, requests, errors, queue, latency
/          show only models whose names contain a text; Esc ends that
e          the last errors in groups: where they come from, and how many
n          nodes of a cluster, with the instances on them
p          pause, and go on
?          this page

REQ/S      requests, also those that failed, each second
INF/S      inferences: a request with a batch of 3 counts 3
ERR/S      requests that failed or were refused, not cancelled ones
QUEUE      requests that wait for an instance
RUN        requests that instances work on
STATE      as the server says; NO INST. is a ready model without any instance
INST       instances; 2/3 are two of three, one of which is missing
BATCH      average number of inferences in one execution
P50 … P99  latency that 50, 95 and 99 of 100 requests stay below
AVG        average latency, of it IN-Q in the queue and INFER in the model
CACHE      answers that came from the response cache
GPU        GPU memory of the processes of its instances"""
_LEFT = frozenset({"STATE"})


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
    """Returns an amount of memory: 57 MiB, 3.2 GiB."""
    if value is None:
        return _NONE
    if value >= 1 << 30:
        return f"{value / (1 << 30):.1f} GiB"
    return f"{value / (1 << 20):.0f} MiB"


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
    return f"last seen {age_text(cluster.unreachable_s)} ago, as the cluster does not answer"


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


@dataclasses.dataclass(slots=True)
class Shown:
    """Everything that the screens show."""

    address: str
    server_name: str = ""
    rows: Sequence[Row] = ()
    sample: MetricsSample | None = None
    history: RateHistory = dataclasses.field(default_factory=RateHistory)
    interval_s: float = 2.0
    problem: str = ""  # why there is no new sample
    note: str = ""
    cards: dict[Key, ModelCard] = dataclasses.field(default_factory=dict)
    failures: FailuresReading | None = None  # None: not read yet
    refused_s: float = 0.0  # requests that reached no model, each second

    @property
    def cluster(self) -> ClusterReading | None:
        """What is known of the server's cluster, if it has one."""
        return self.sample.cluster if self.sample is not None else None

    @property
    def has_percentiles(self) -> bool:
        """Whether the server has histograms of latencies."""
        sample = self.sample
        return sample is not None and any(each.latencies for each in sample.models.values())


@dataclasses.dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the table."""

    title: str
    width: int
    text: Callable[[Row], str]
    importance: int  # columns with smaller numbers go first where there is little room


def _instances(row: Row) -> str:
    if row.instances is None:
        return "-"
    return f"{row.instances}/{row.instances + row.missing}" if row.missing else str(row.instances)


def _state(row: Row) -> str:
    if row.state == "READY" and not row.is_served:
        return _NOT_SERVED
    return _SHORT.get(row.state, row.state) or "-"


_COMMON = (
    TableColumn("VER", 3, lambda row: row.version or "-", 5),
    TableColumn("STATE", 9, _state, 7),
    TableColumn("REQ/S", 6, lambda row: rate_text(row.requests_s), 10),
    TableColumn("INF/S", 6, lambda row: rate_text(row.inferences_s), 3),
    TableColumn("ERR/S", 5, lambda row: rate_text(row.errors_s), 8),
    TableColumn("QUEUE", 5, lambda row: count_text(row.pending), 8),
    TableColumn("RUN", 4, lambda row: count_text(row.running), 6),
    TableColumn("INST", 4, _instances, 2),
    TableColumn("BATCH", 5, lambda row: batch_text(row.batch), 7),
)
_PERCENTILES = (
    TableColumn("P50", 6, lambda row: milliseconds_text(row.p50_ms), 9),
    TableColumn("P95", 6, lambda row: milliseconds_text(row.p95_ms), 6),
    TableColumn("P99", 6, lambda row: milliseconds_text(row.p99_ms), 9),
)
_AVERAGES = (
    TableColumn("AVG", 6, lambda row: milliseconds_text(row.average_ms), 9),
    TableColumn("IN-Q", 6, lambda row: milliseconds_text(row.queue_ms), 6),
    TableColumn("INFER", 6, lambda row: milliseconds_text(row.compute_ms), 6),
)
_CACHE = TableColumn("CACHE", 5, lambda row: share_text(row.cache_hits), 4)
_GPU = TableColumn("GPU", 8, lambda row: size_text(row.gpu_memory), 4)


def columns_for(shown: Shown, width: int) -> list[TableColumn]:
    """Returns the columns that fit, in their order; the least important ones are left out."""
    sample = shown.sample
    models = sample.models.values() if sample else ()
    columns = [*_COMMON, *(_PERCENTILES if shown.has_percentiles else _AVERAGES)]
    if any(counts.cache_hits is not None for counts in models):
        columns.append(_CACHE)
    if any(counts.gpu_memory is not None for counts in models):
        columns.append(_GPU)
    known = {
        "RUN": any(counts.running is not None for counts in models),
        "INST": any(counts.instances is not None for counts in models),
        "QUEUE": any(counts.pending is not None for counts in models),
    }
    columns = [column for column in columns if known.get(column.title, True)]
    while columns and sum(column.width + 1 for column in columns) + _MIN_NAME > width:
        columns.remove(min(columns, key=lambda column: column.importance))
    return columns


def draw(shown: Shown, state: ViewState, width: int, height: int) -> list[Text]:
    """Returns the lines of the screen, each at most as wide as the terminal."""
    head = _head(shown, state, width)
    if state.screen is TopScreen.HELP:
        head = head[:1]  # so that all of it fits into a terminal of 24 lines
    room = max(height - len(head) - 1, 1)
    if state.screen is TopScreen.HELP:
        body = [Text(f" {line}") for line in _HELP.split("\n")]
    elif state.screen is TopScreen.DETAILS:
        body = _details(shown, state, width)
    elif state.screen is TopScreen.ERRORS:
        body = _failures(shown, room)
    elif state.screen is TopScreen.NODES:
        body = _nodes(shown, room)
    else:
        body = _table(shown, state, width, room)
    rest = [Text("")] * (room - len(body))
    foot = _foot(state, visible_rows(shown, state), room, has_nodes=shown.cluster is not None)
    lines = [*head, *body[:room], *rest, foot]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return lines[:height]


def _head(shown: Shown, state: ViewState, width: int) -> list[Text]:
    title = Text.assemble((" pytriton top ", "bold reverse"), f"  {shown.address}")
    sample = shown.sample
    if shown.server_name:
        title.append(f"  {shown.server_name}", style="dim")
    if sample is not None and sample.uptime_s is not None:
        title.append(f"  up {age_text(sample.uptime_s)}", style="dim")
    if state.is_paused:
        title.append("  paused", style="bold yellow")
    if shown.problem:
        again = f" Trying again every {shown.interval_s:g} s; the table is what was seen last."
        return [title, Text(f" {shown.problem}", style="bold red"), Text(again), Text("")]
    lines = [title, _totals(shown), _machine(shown, width)]
    if shown.cluster is not None:
        lines.append(cluster_line(shown.rows, shown.cluster))
    if shown.note:
        lines.append(Text(f" {shown.note}", style="yellow"))
    return [*lines, Text("")]


def _totals(shown: Shown) -> Text:
    rows = shown.rows
    ready = sum(row.is_served for row in rows)
    text = Text(f" models {ready} of {len(rows)} ready")
    if shown.history.total:
        requests = total(rows, "requests_s") + shown.refused_s
        text.append(f"   requests {rate_text(requests)}/s")
        errors = total(rows, "errors_s") + shown.refused_s
        text.append(f"   errors {rate_text(errors)}/s", style="bold red" if errors else "")
    for word, field in (("queue", "pending"), ("running", "running")):
        if any(getattr(row, field) is not None for row in rows):
            text.append(f"   {word} {count_text(total(rows, field))}")
    return text


def _machine(shown: Shown, width: int) -> Text:
    sample = shown.sample
    text = Text(" ")
    if sample is None:
        return text
    facts = []
    if sample.cpu is not None:
        facts.append(f"cpu {share_text(sample.cpu)}")
    if sample.memory_used is not None:
        used, whole = size_text(sample.memory_used), size_text(sample.memory_total)
        facts.append(f"memory {used} of {whole}")
    if sample.server_memory is not None:
        facts.append(f"server {size_text(sample.server_memory)}")
    for number, gpu in enumerate(sample.gpus.values()):
        memory = f"{size_text(gpu.memory_used)} of {size_text(gpu.memory_total)}"
        facts.append(f"gpu {number} {share_text(gpu.utilization)} {memory}")
    text.append("   ".join(facts))
    left = width - len(text) - 4
    if left >= 10:
        text.append("   ")
        text.append(sparkline(shown.history.total, left), style="cyan")
    return text


def visible_rows(shown: Shown, state: ViewState) -> list[Row]:
    """Returns the rows that a person wants to see, in the chosen order."""
    return ordered(shown.rows, state.order, state.name_filter)


def _table(shown: Shown, state: ViewState, width: int, room: int) -> list[Text]:
    rows = visible_rows(shown, state)
    columns = columns_for(shown, width)
    spare = width - sum(column.width + 1 for column in columns)
    longest = max((len(row.name) for row in rows), default=0)
    # The sparkline of a row comes where a name does not need the room.
    has_trend = spare - max(longest, _MIN_NAME) > _TREND + 3
    name_width = spare - 1 - (_TREND + 1 if has_trend else 0)
    name_width = min(name_width, max(longest, _MIN_NAME) + 2)
    title = f" {'MODEL':<{name_width}}" + "".join(_cell(column, column.title) for column in columns)
    lines = [Text(f"{title}{' TREND' if has_trend else ''}", style="bold")]
    if not rows:
        what = f"no model has '{state.name_filter}' in its name" if shown.rows else "no models"
        return [*lines, Text(f" {what}", style="dim")]
    selected, first, last = _window(rows, state, room)
    for number, row in enumerate(rows[first:last], first):
        line = _row_line(row, columns, name_width)
        if has_trend:
            line.append(" ")
            line.append(sparkline(shown.history.models.get(row.key, ()), _TREND), style="cyan")
        if shown.problem:
            line.stylize("dim")
        if number == selected:
            line.stylize("reverse")
        lines.append(line)
    return lines


def _window(rows: Sequence[Row], state: ViewState, room: int) -> tuple[int, int, int]:
    """Returns the index of the selected row, and those of the first and after the last shown."""
    keys = [row.key for row in rows]
    selected = keys.index(state.selected) if state.selected in keys else 0
    count = max(room - 1, 1)  # without the titles
    first = max(0, min(selected - count + 1, len(rows) - count))
    return selected, first, min(first + count, len(rows))


def _row_line(row: Row, columns: Sequence[TableColumn], name_width: int) -> Text:
    name = row.name if len(row.name) <= name_width else f"{row.name[: name_width - 1]}…"
    line = Text(f" {name:<{name_width}}")
    for column in columns:
        style = ""
        if column.title == "STATE":
            style = "red" if _state(row) == _NOT_SERVED else _STATES.get(row.state, "")
        elif {"ERR/S": row.errors_s, "INST": row.missing}.get(column.title):
            style = "bold red"
        line.append(_cell(column, column.text(row)), style=style)
    return line


def _cell(column: TableColumn, text: str) -> str:
    if column.title in _LEFT:
        return f" {text:<{column.width}}"
    return f" {text:>{column.width}}"


def _details(shown: Shown, state: ViewState, width: int) -> list[Text]:
    row = next((row for row in shown.rows if row.key == state.selected), None)
    if row is None:
        return [Text(" this model is gone", style="dim")]
    head = Text(f" {row.name} version {row.version}", style="bold")
    lines = [head, *(Text(f"   {name:<11} {value}") for name, value in _facts(row))]
    trend = sparkline(shown.history.models.get(row.key, ()), width - 16)
    lines += [Text(f"   {'trend':<11} ").append(trend, style="cyan"), Text("")]
    card = shown.cards.get(row.key) or ModelCard(row.name, row.version, row.state, row.reason)
    described = details_text([card], shown.address).split("\n")[1:]
    return [*lines, *(Text(f" {line}") for line in described)]


def _nodes(shown: Shown, room: int) -> list[Text]:
    lines = node_lines(shown.rows, shown.cluster)
    if not lines:
        return [Text(" All instances run on the server's own machine.", style="dim")]
    head, *rest = (Text(f" {line}") for line in lines)
    head.stylize("bold")
    if len(rest) <= room - 1:
        return [head, *rest]
    shown_count = max(room - 2, 0)
    more = Text(f" and {len(rest) - shown_count} more; a larger terminal shows them", style="dim")
    return [head, *rest[:shown_count], more]


def _failures(shown: Shown, room: int) -> list[Text]:
    rows = shown.failures.rows if shown.failures is not None else ()
    now_s = time.time()
    ages = {row.last_s: age_text(max(now_s - row.last_s, 0.0)) for row in rows}
    return failure_lines(shown.failures, ages, TOKEN_VARIABLE, room)


def _facts(row: Row) -> Iterator[tuple[str, str]]:
    yield (
        "requests",
        f"{rate_text(row.requests_s)}/s, {count_text(row.succeeded)} so far",
    )
    yield "errors", f"{rate_text(row.errors_s)}/s, {count_text(row.failed)} so far"
    yield (
        "inferences",
        f"{rate_text(row.inferences_s)}/s, batches of {batch_text(row.batch)}",
    )
    yield (
        "waiting",
        f"{count_text(row.pending)} in the queue, {count_text(row.running)} run",
    )
    yield "average", _parts_of_latency(row)
    if row.p50_ms is not None:
        percentiles = (row.p50_ms, row.p95_ms, row.p99_ms)
        yield "p50 p95 p99", "  ".join(map(milliseconds_text, percentiles))
    if row.cache_hits is not None:
        yield "cache hits", share_text(row.cache_hits)
    if row.gpu_memory is not None:
        yield "GPU memory", f"{size_text(row.gpu_memory)} of its processes"
    if any(row.paths.values()):
        yield "paths", _paths_text(row.paths)
    if row.instances is not None:
        of = f" of {row.instances + row.missing}" if row.missing else ""
        where = f": {places_text(row.places)}" if row.places else ""
        yield "instances", f"{row.instances}{of}{where}"


def _paths_text(paths: Mapping[str, float]) -> str:
    """Returns how requests came to the model, the most frequent way first."""
    total = sum(paths.values())
    shares = sorted(paths.items(), key=lambda each: -each[1])
    return ", ".join([f"{path} {share_text(count / total)}" for path, count in shares if count])


def _parts_of_latency(row: Row) -> str:
    parts = [
        f"{milliseconds_text(row.average_ms)}",
        f"{milliseconds_text(row.queue_ms)} in the queue",
        f"{milliseconds_text(row.compute_ms)} in the model",
    ]
    return ", ".join(parts) if row.average_ms is not None else "-"


def _foot(state: ViewState, rows: Sequence[Row], room: int, *, has_nodes: bool) -> Text:
    if state.is_typing:
        return Text(f" filter: {state.name_filter}▏  Enter keeps it, Esc ends it", style="bold")
    if state.screen is not TopScreen.TABLE:
        return Text(" Enter or Esc goes back   q quit", style="dim")
    hidden = f" ({state.name_filter})" if state.name_filter else ""
    sort = f"s sort ({state.order.value})"
    nodes = "  n nodes" if has_nodes else ""
    keys = f" q quit  {sort}  / filter{hidden}  e errors  Enter details{nodes}  ? help"
    _, first, last = _window(rows, state, room)
    where = f"  {first + 1}-{last} of {len(rows)}" if last - first < len(rows) else ""
    return Text(f"{keys}{where}", style="dim")


def table_lines(shown: Shown) -> list[str]:
    """Returns the table for scripts: every column, no colours, names in full."""
    columns = columns_for(shown, 1000)
    names = max([len(row.name) for row in shown.rows] + [len("MODEL")])
    head = f"{'MODEL':<{names}}" + "".join(_cell(column, column.title) for column in columns)
    lines = [head]
    for row in ordered(shown.rows, RowOrder.NAME):
        cells = "".join(_cell(column, column.text(row)) for column in columns)
        lines.append(f"{row.name:<{names}}{cells}".rstrip())
    return lines
