# SPDX-License-Identifier: Apache-2.0
"""Reads samples from a server: metrics, or statistics where those are out of reach, and states."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Mapping

from pytriton.client.kserve.errors import AskError, ServerRefusedError, UnansweredError
from pytriton.tools.commands.model_cards import ModelCard, describe, list_models
from pytriton.tools.commands.server_options import ServerClients
from pytriton.tools.commands.top.failures import FailuresReading, read_failures
from pytriton.tools.commands.top.samples import (
    Key,
    MetricsSample,
    add_page_numbers,
    read_metrics,
    read_statistics,
)

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
