# SPDX-License-Identifier: Apache-2.0
"""`pytriton top`: what the models of a server do at this moment.

The live view is a thin loop between the keyboard, the readings and the screen.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live

from pytriton.client.kserve.errors import AskError
from pytriton.tools.commands.option_values import number_between
from pytriton.tools.commands.server_options import ServerClients, add_server_options, connect
from pytriton.tools.commands.top.rows import row_document, rows_of
from pytriton.tools.commands.top.samples import MetricsSample, cluster_document
from pytriton.tools.commands.top.source import ReadingThread, ServerReader, ServerReading
from pytriton.tools.commands.top.state import TopScreen, ViewState, keys_in
from pytriton.tools.commands.top.view import Shown, draw, node_lines, table_lines, visible_rows
from pytriton.utils.option_parser import OptionParser

_LOOK_EVERY_S = 0.1  # for new readings and a new size of the terminal

_TIMEOUT_S = 10.0  # a server that hangs is to be seen soon


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Show what the models of a server do."""
    options = _parser().parse_args(list(arguments))
    is_live = not (options.once or options.json)
    if is_live and not (sys.stdin.isatty() and sys.stdout.isatty()):
        complain("The live view needs a terminal; --once prints a table, --json a document.")
        return 2
    try:
        connection = connect(options)
        with contextlib.closing(connection):
            if is_live:
                shown = Shown(str(connection.address), interval_s=options.interval)
                watch(ReadingThread(ServerReader(connection), options.interval), shown)
                return 0
            shown = _two_samples(connection, options.interval)
    except AskError as error:
        complain(str(error))
        return 1
    if options.json:
        show(json.dumps(_document(shown), indent=2))
    else:
        show("\n".join(table_lines(shown)))
        nodes = node_lines(shown.rows, shown.cluster)
        if nodes:
            show("\n".join(["", *nodes]))
        if shown.note:
            complain(shown.note)
    return 0


def watch(reader: ReadingThread, shown: Shown) -> None:
    """Show a server until a person ends it.

    Args:
        reader: reads the server; it is started and stopped here.
        shown: what is known at the beginning.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    state = ViewState()
    reader.start()
    try:
        with _keys_at_once(), Live(console=console, screen=True, auto_refresh=False) as live:
            loop = _Loop(reader, shown, state)
            size = None
            while not state.is_over:
                if loop.step() or console.size != size:
                    size = console.size
                    lines = draw(shown, state, size.width, size.height)
                    live.update(Group(*lines), refresh=True)
    finally:
        reader.stop()


class _Loop:
    """Brings keys and readings together."""

    def __init__(self, reader: ReadingThread, shown: Shown, state: ViewState) -> None:
        self._reader = reader
        self._shown = shown
        self._state = state
        self._last: MetricsSample | None = None

    def step(self) -> bool:
        """Wait a moment for keys and readings; returns whether the screen changes."""
        readable, _, _ = select.select([sys.stdin], [], [], _LOOK_EVERY_S)
        changed = False
        if readable:
            data = os.read(sys.stdin.fileno(), 1024)
            if not data:  # the terminal is gone
                self._state.is_over = True
            for key in keys_in(data):
                keys = [row.key for row in visible_rows(self._shown, self._state)]
                self._state.press(key, keys)
            changed = True
            self._ask_for_details()
            self._reader.tell_failures(is_wanted=self._state.screen is TopScreen.ERRORS)
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._reader.readings.get_nowait())
                changed = True
        return changed

    def _ask_for_details(self) -> None:
        key = self._state.selected
        is_open = self._state.screen is TopScreen.DETAILS
        if is_open and key is not None and key not in self._shown.cards:
            self._reader.describe(key)

    def _take(self, reading: ServerReading) -> None:
        self._shown.cards.update(reading.cards)
        self._shown.failures = reading.failures or self._shown.failures
        if reading.problem:
            self._shown.problem = reading.problem
            self._last = None  # the next rates begin anew
        if reading.sample is None or self._state.is_paused:
            return
        take(self._shown, self._last, reading)
        self._last = reading.sample


def take(shown: Shown, before: MetricsSample | None, reading: ServerReading) -> None:
    """Put a reading on show, with the rates since the one before."""
    assert reading.sample is not None
    shown.problem, shown.note = "", reading.note
    shown.server_name = reading.server_name
    shown.sample = reading.sample
    shown.rows = rows_of(before, reading.sample, reading.states)
    shown.history.add(shown.rows)
    shown.refused_s = 0.0
    if before is not None and reading.sample.at_s > before.at_s:
        refused = max(reading.sample.refused - before.refused, 0.0)
        shown.refused_s = refused / (reading.sample.at_s - before.at_s)


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Let keys come when they are pressed, and do not print them."""
    import termios  # noqa: PLC0415  not on every system
    import tty  # noqa: PLC0415

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _two_samples(connection: ServerClients, interval_s: float) -> Shown:
    shown = Shown(str(connection.address), interval_s=interval_s)
    source = ServerReader(connection)
    first = source.read()
    take(shown, None, first)
    time.sleep(interval_s)
    take(shown, first.sample, source.read())
    return shown


def _document(shown: Shown) -> dict[str, object]:
    sample = shown.sample
    assert sample is not None
    return {
        "server": shown.address,
        "interval_s": shown.interval_s,
        "uptime_s": sample.uptime_s,
        "cpu": sample.cpu,
        "memory_used": sample.memory_used,
        "memory_total": sample.memory_total,
        "server_memory": sample.server_memory,
        "cluster": cluster_document(shown.cluster) if shown.cluster else None,
        "models": [row_document(row) for row in shown.rows],
    }


def _parser() -> OptionParser:
    parser = OptionParser(
        prog="pytriton top",
        description="Show what the models of a server do: states, requests a second, queues, batch "
        "sizes and latencies, from its metrics. ? shows the keys.",
        epilog="Servers without histograms of latencies, such as Triton, have averages. Where the "
        "metrics are out of reach, statistics are read, which may need a token.",
    )
    parser.add_argument(
        "--interval",
        type=number_between(0.1, 3600),
        default=2.0,
        metavar="SECONDS",
        help="from one look to the next (2)",
    )
    parser.add_argument("--once", action="store_true", help="print one table and end")
    parser.add_argument("--json", action="store_true", help="print one JSON document and end")
    add_server_options(parser)
    parser.set_defaults(timeout=_TIMEOUT_S)
    return parser
