# SPDX-License-Identifier: Apache-2.0
"""Plays what a worker does against a server, and judges how the server takes it.

Other models answer correctly and after few turns of the loop, each request ends once, the log has a
sentence and no traceback, statistics and metrics stay well formed, and what the server holds stays
in its limits. When the worker is gone, nothing of it is left, and its model serves again.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import importlib.util
import json
import logging
import os
import pathlib
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from pytriton.runtime.transport import peer_account
from pytriton.runtime.transport.stream_channel import StreamChannel
from pytriton.serving.server.api.documents import statistics_of
from pytriton.serving.server.metrics.exposition import OPEN_END
from pytriton.serving.server.metrics.page import MetricsPage, custom_families
from pytriton.serving.server.options.metrics_options import MetricsOptions
from tests.fakes import RecordingSink
from tests.fuzz.fuzzing import Case
from tests.fuzz.worker_story import Doing, Passing, Saying, Turns
from tests.fuzz.worker_world import KINDS, World, small_limits

# A probe is four messages between processes, each of which takes a turn or two.
MAX_TURNS = 40
MAX_STATISTIC = 1 << 62  # of any number in statistics
_SEAL = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NUMBERS = [3, 4]


class Outcome(NamedTuple):
    """What a story has shown, for the account of a campaign."""

    kinds: Counter[str]  # messages that were sent, by what they are
    breaches: tuple[str, ...]  # sentences of the log with which workers ended
    turns: int
    slowest_probe: int  # in turns
    longest_ns: int  # of processor time, for one turn


def play(story: Case, watch: Callable[[World], None] = lambda _: None) -> Outcome:
    """Play a story.

    Args:
        story: The kind of the worker, then what happens.
        watch: Called after each step.

    Raises:
        AssertionError: The server does not take it as it should.
    """
    kind, steps = (story[0], story[1:]) if story and story[0] in KINDS else (KINDS[0], story)
    gc.collect()
    opened = _open_descriptors()
    with small_limits(), _logged() as records:
        world = World(kind)
        try:
            outcome = _Play(world, records, watch).run(steps)
        finally:
            world.close()
        _check_nothing_left(world)
        world.loop.close()
        assert not world.loop.problems, world.loop.problems[0]
        del world
    _check_log(records)
    gc.collect()
    left = _open_descriptors() - opened
    assert not left, f"descriptors are left: {left}"
    return outcome


class _Play:
    def __init__(
        self, world: World, records: list[logging.LogRecord], watch: Callable[[World], None]
    ) -> None:
        self._world = world
        self._records = records
        self._watch = watch
        self._kinds: Counter[str] = Counter()
        self._slowest_probe = 0

    def run(self, steps: Case) -> Outcome:
        world = self._world
        world.worker.is_hostile = True
        for step in steps:
            self._do(step)
            self._watch(world)
        world.loop.run()
        self._check_held()
        self._check_pages()
        self._probe()
        world.worker.exit()
        world.loop.advance(10)
        world.wild.recover()
        self._check_recovery()
        for sink in world.sinks:
            assert sink.final_count == 1, f"a request ended {sink.final_count} times"
        breaches = [each.getMessage() for each in self._records if _is_breach(each.getMessage())]
        assert len(breaches) <= 1, breaches
        longest_ns = world.loop.longest_ns
        return Outcome(
            self._kinds, tuple(breaches), world.loop.turns, self._slowest_probe, longest_ns
        )

    def _do(self, step: Any) -> None:
        world = self._world
        if isinstance(step, Saying):
            self._kinds[step.kind] += step.count
            for _ in range(step.count):
                world.worker.say(step.message, _open(step.files))
        elif isinstance(step, Turns):
            world.turn(step.count)
        elif isinstance(step, Passing):
            world.loop.advance(step.seconds)
        elif step == Doing("ask"):
            world.ask("wild", [1, 2])
        elif step == Doing("probe"):
            self._probe()
        elif step == Doing("deaf"):
            world.worker.stop_reading()
        elif step == Doing("hang up"):
            world.worker.exit()

    def _probe(self) -> None:
        """Ask another model, which has to answer soon, whatever the worker does meanwhile."""
        world = self._world
        sink = world.ask("echo", _NUMBERS)
        for count in range(MAX_TURNS):
            if sink.final_count:
                self._slowest_probe = max(self._slowest_probe, count)
                _check_echo(sink)
                return
            world.turn(1)
        raise AssertionError(f"another model has not answered after {MAX_TURNS} turns")

    def _check_held(self) -> None:
        """What is held for the worker is in its limits, and counted right."""
        for served in (self._world.echo, self._world.wild):
            served.memory.arena.check_integrity()
            served.model.check_integrity()
        instances = [*self._world.wild.model.instances]
        for instance in instances:
            channel = instance._channel.channel
            account = channel._account
            if not instance._channel.is_open:
                continue
            if isinstance(channel, StreamChannel):
                unsent = sum(channel._counted)
            else:
                unsent = sum(len(data) for data, _ in channel.link._unsent)
            assert account.unread_bytes == unsent <= peer_account.MAX_UNREAD_BYTES
            assert 0 <= account.partial_bytes <= peer_account.MAX_PARTIAL_BYTES
            assert 0 <= account.calls <= peer_account.MAX_CALLS
            assert 0 <= account.call_bytes <= peer_account.MAX_CALL_BYTES

    def _check_pages(self) -> None:
        """Statistics and custom metrics are what their readers take."""
        models = [served.model for served in (self._world.echo, self._world.wild)]
        for model in models:
            for number in _numbers(json.loads(json.dumps(statistics_of(model)))):
                assert 0 <= number < MAX_STATISTIC, statistics_of(model)
        families = list(custom_families(self._world.metrics))
        page = MetricsPage(MetricsOptions())
        assert page.render(models, families)
        if families:
            check_families(families)

    def _check_recovery(self) -> None:
        """A good worker has taken the place of the one that has ended."""
        sink = self._world.ask("wild", _NUMBERS)
        for _ in range(MAX_TURNS):
            if not sink.final_count:
                self._world.turn(1)
        _check_echo(sink)


def check_families(families: list[Any]) -> None:
    """Let readers of both formats read families, if there are some here."""
    if importlib.util.find_spec("prometheus_client") is None:
        return
    parser = importlib.import_module("prometheus_client.parser")
    open_parser = importlib.import_module("prometheus_client.openmetrics.parser")
    text = "".join([family.text() for family in families])
    read = list(parser.text_string_to_metric_families(text))
    text = "".join([family.open_text() for family in families]) + OPEN_END
    again = list(open_parser.text_string_to_metric_families(text))
    shown = [family.name for family in families if family.samples]
    assert len(again) == len(shown) <= len(read), (shown, again)


def _check_echo(sink: RecordingSink) -> None:
    assert not sink.errors, sink.errors[0].message
    data = sink.responses[0].outputs[0].data
    assert np.frombuffer(data, np.int32).tolist() == sink.name


def _numbers(document: Any) -> Iterator[float]:
    if isinstance(document, dict):
        for each in document.values():
            yield from _numbers(each)
    elif isinstance(document, list):
        for each in document:
            yield from _numbers(each)
    elif isinstance(document, int | float):
        yield document


def _check_nothing_left(world: World) -> None:
    assert len(world.metrics) == 0, "families of metrics are left"
    assert not world.metrics._line_owners
    assert len(world.shared.caller.waits) == 0, "calls wait"
    assert len(world.shared._tasks) == 0, "services run"
    for served in (world.echo, world.wild):
        served.model.check_integrity()


def _is_breach(text: str) -> bool:
    return "which ends it: " in text


def _check_log(records: list[logging.LogRecord]) -> None:
    for record in records:
        if record.exc_info and record.exc_info[1] is not None:
            raise record.exc_info[1]
        text = record.getMessage()
        if record.levelno >= logging.ERROR and record.name.startswith("pytriton."):
            assert _is_breach(text), text
            assert len(text) < 1000, text


@contextlib.contextmanager
def _logged() -> Iterator[list[logging.LogRecord]]:
    """Keep what is logged, beside what other tests' threads log."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.INFO)
    handler.addFilter(lambda record: record.threadName == "MainThread")

    def keep(record: logging.LogRecord) -> None:
        # The text alone: an error in the arguments refers to the frames that have raised it.
        record.msg, record.args = record.getMessage(), None
        records.append(record)

    handler.emit = keep
    logger = logging.getLogger("pytriton")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


def _open(files: tuple[str, ...]) -> list[int]:
    return [_open_file(file) for file in files]


def _open_file(file: str) -> int:
    kind, _, size = file.partition(" ")
    if kind == "null":
        return os.open(os.devnull, os.O_RDONLY)
    if kind == "pipe":
        reader, writer = os.pipe()
        os.close(writer)
        return reader
    if kind == "socket":
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach()
    descriptor = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, int(size))
    if kind == "sealed":
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEAL)
    return descriptor


def _open_descriptors() -> set[tuple[str, str]]:
    """Returns the descriptors of this process, and of what they are."""
    found = set()
    for link in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself is gone
            found.add((link.name, str(link.readlink())))
    return found
