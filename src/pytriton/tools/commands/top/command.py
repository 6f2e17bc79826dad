# SPDX-License-Identifier: Apache-2.0
"""`pytriton top`: what the models of a server do at this moment.

The live view is a thin loop between the keyboard, the readings and the screen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live

from pytriton.client.kserve.errors import AskError, ServerRefusedError, UnansweredError
from pytriton.tools.commands.model_cards import ModelCard, describe, list_models
from pytriton.tools.commands.option_values import number_between
from pytriton.tools.commands.server_options import ServerClients, add_server_options, connect
from pytriton.tools.commands.top.failures import FailuresReading, read_failures
from pytriton.tools.commands.top.rows import row_document, rows_of
from pytriton.tools.commands.top.samples import (
    Key,
    MetricsSample,
    add_page_numbers,
    cluster_document,
    read_metrics,
    read_statistics,
)
from pytriton.tools.commands.top.state import TopScreen, ViewState, keys_in
from pytriton.tools.commands.top.view import Shown, draw, node_lines, table_lines, visible_rows
from pytriton.utils.option_parser import OptionParser

_STATES_EVERY_S = 5.0  # unless models come or go
_PAGE_FAILURES = "/page/api/failures"
_PAGE_NUMBERS = "/page/api/now"


@dataclasses.dataclass(frozen=True, slots=True)
class ServerReading:
    """What was read at one moment, or why nothing was."""

    sample: MetricsSample | None = None
    states: Mapping[Key, tuple[str, str]] = dataclasses.field(default_factory=dict)
    server_name: str = ""
    note: str = ""
    problem: str = ""
    cards: Mapping[Key, ModelCard] = dataclasses.field(default_factory=dict)
    failures: FailuresReading | None = None


class ServerReader:
    """Reads one server again and again."""

    def __init__(self, connection: ServerClients) -> None:
        self._connection = connection
        self._states: dict[Key, tuple[str, str]] = {}
        self._states_at_s = float("-inf")
        self._known: frozenset[Key] = frozenset()
        self._server_name = ""

    def read(self) -> ServerReading:
        """Read everything once.

        Raises:
            AskError: The server is not there, or tells nothing.
        """
        sample, note = self._sample()
        self._read_states(sample)
        if not self._server_name:
            with contextlib.suppress(AskError):
                metadata = self._connection.server.server_metadata()
                name = f"{metadata.get('name', '')} {metadata.get('version', '')}"
                self._server_name = name.strip()
        return ServerReading(sample, dict(self._states), self._server_name, note)

    def describe(self, key: Key) -> ModelCard:
        """Ask for everything about one version.

        Raises:
            AskError: The server does not tell.
        """
        card = describe(self._connection.server, *key)
        state, reason = self._states.get(key, ("", ""))
        return dataclasses.replace(card, state=state or card.state, reason=reason)

    def failures(self) -> FailuresReading:
        """Ask for the last failures in groups, which only our page tells."""
        try:
            return read_failures(self._connection.metrics.get_document(_PAGE_FAILURES))
        except AskError as error:
            return FailuresReading(problem=f"The server does not tell its last errors: {error}")
        except (KeyError, TypeError, ValueError, AttributeError):
            address = self._connection.metrics_address
            return FailuresReading(problem=f"{address} does not tell the last errors of a server.")

    def _sample(self) -> tuple[MetricsSample, str]:
        metrics = self._connection.metrics
        try:
            text = metrics.get_text("/metrics")
        except AskError as no_metrics:
            try:
                models = self._connection.server.statistics()
            except UnansweredError:
                raise
            except AskError as no_statistics:
                raise AskError(f"{no_metrics} {no_statistics}") from no_statistics
            note = f"No metrics at {self._connection.metrics_address}: these are statistics."
            return read_statistics(models, time.monotonic()), note
        sample = read_metrics(text, time.monotonic())
        with contextlib.suppress(AskError, KeyError, TypeError, ValueError, AttributeError):
            add_page_numbers(sample, metrics.get_document(_PAGE_NUMBERS), time.time())
        return sample, ""

    def _read_states(self, sample: MetricsSample) -> None:
        now_s = time.monotonic()
        models = frozenset(sample.models)
        if models == self._known and now_s - self._states_at_s < _STATES_EVERY_S:
            return
        self._known, self._states_at_s = models, now_s
        try:
            listing = list_models(self._connection, describes=False)
        except AskError:
            self._states = {}
        else:
            self._states = {
                (card.name, card.version): (card.state, card.reason) for card in listing.models
            }
        for key in models:
            if not self._states.get(key, ("", ""))[0]:
                self._states[key] = (self._ready(key), "")

    def _ready(self, key: Key) -> str:
        try:
            return "READY" if self._connection.server.is_model_ready(*key) else "UNAVAILABLE"
        except AskError:
            return ""


class ReadingThread:
    """Reads a server on a thread, so that the keyboard never waits for it.

    Args:
        source: reads the server.
        interval_s: from one reading to the next.
    """

    def __init__(self, source: ServerReader, interval_s: float) -> None:
        self.readings: queue.SimpleQueue[ServerReading] = queue.SimpleQueue()
        self._source = source
        self._interval_s = interval_s
        self._wanted: Key | None = None
        self._wants_failures = False
        self._is_over = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pytriton-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def describe(self, key: Key) -> None:
        """Let the next reading, which comes at once, have the details of a version."""
        self._wanted = key
        self._wake.set()

    def tell_failures(self, *, is_wanted: bool) -> None:
        """Let readings have the last failures as long as somebody looks at them."""
        if is_wanted and not self._wants_failures:
            self._wake.set()
        self._wants_failures = is_wanted

    def stop(self) -> None:
        self._is_over = True
        self._wake.set()

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._is_over:
            wanted, self._wanted = self._wanted, None
            if wanted is not None:
                with contextlib.suppress(AskError):
                    self.readings.put(ServerReading(cards={wanted: self._source.describe(wanted)}))
            if self._wants_failures:
                self.readings.put(ServerReading(failures=self._source.failures()))
            if time.monotonic() >= next_s:
                self.readings.put(self._read())
                next_s = time.monotonic() + self._interval_s
            self._wake.wait(max(next_s - time.monotonic(), 0.0))
            self._wake.clear()

    def _read(self) -> ServerReading:
        try:
            return self._source.read()
        except ServerRefusedError as error:
            return ServerReading(problem=f"The server refused: {error}")
        except AskError as error:
            return ServerReading(problem=str(error))
        except Exception as error:  # noqa: BLE001  the view would stand still without a word
            return ServerReading(problem=f"The server's answer cannot be understood: {error!r}")


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
