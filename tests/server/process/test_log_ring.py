# SPDX-License-Identifier: Apache-2.0
"""The last entries of the log, which the page shows."""

from __future__ import annotations

import logging

import pytest

from pytriton.base.log_lines import SentLine, SentLines
from pytriton.base.log_switches import LogSwitches
from pytriton.serving.server.process import kept_lines as lines_of_page
from pytriton.serving.server.process.kept_lines import LineFilter, LogRing, kept_lines
from pytriton.serving.server.process.logs import keep_lines, use_log_switches


@pytest.fixture
def ring():
    made = LogRing()
    log = logging.getLogger("tests.log_ring")
    log.setLevel(logging.DEBUG)
    log.addHandler(made)
    yield made
    log.removeHandler(made)


@pytest.fixture
def log():
    return logging.getLogger("tests.log_ring")


def test_ring_keeps_what_was_logged(ring, log):
    log.warning("%d of %d", 1, 2)

    (line,) = ring.after(0)
    assert (line.number, line.level, line.text) == (1, "WARNING", "1 of 2")
    assert line.place.startswith("test_log_ring.py:")


def test_bytes_that_are_no_text_can_be_sent(ring, log):
    log.warning("model %s", b"\xff".decode("utf-8", "surrogateescape"))

    assert ring.after(0)[0].text == r"model \udcff"


def test_ring_returns_only_what_came_after_a_number(ring, log):
    for text in "abc":
        log.error(text)

    assert [line.text for line in ring.after(1)] == ["b", "c"]
    assert ring.after(3) == []


def test_ring_returns_all_to_a_viewer_of_an_earlier_server(ring, log):
    log.error("a")

    assert [line.text for line in ring.after(400)] == ["a"]


def test_ring_drops_the_oldest_entries(ring, log):
    for number in range(lines_of_page.MAX_ENTRIES + 5):
        log.error("%d", number)

    lines = ring.after(0)
    assert len(lines) == lines_of_page.MAX_ENTRIES
    assert (lines[0].text, lines[0].number) == ("5", 6)
    assert [line.text for line in ring.after(lines_of_page.MAX_ENTRIES + 3)] == ["1003", "1004"]


def test_long_entry_is_cut(ring, log):
    log.error("x" * 10_000)

    assert ring.after(0)[0].text == "x" * lines_of_page.MAX_CHARACTERS + " ..."


def test_traceback_is_part_of_an_entry(ring, log):
    try:
        int("deep inside")
    except ValueError:
        log.exception("it failed")

    text = ring.after(0)[0].text
    assert text.startswith("it failed\nTraceback")
    assert text.endswith("'deep inside'")


def test_traceback_of_another_process_and_ids_are_part_of_an_entry(ring, log):
    record = log.makeRecord(log.name, logging.ERROR, "model.py", 7, "failed", (), None)
    record.exc_text = "Traceback of a worker"
    record.triton_request_ids = ["order-17"]
    log.handle(record)

    (line,) = ring.after(0)
    assert line.text == "failed\nTraceback of a worker"
    assert line.request_ids == ["order-17"]


def test_ring_follows_the_settings_of_the_log():
    root = logging.getLogger()
    level, before = root.level, list(root.handlers)
    try:
        keep_lines(LogRing(), LogSwitches(info=False))
        found = kept_lines()
        assert found is not None
        log = logging.getLogger("tests.log_ring.settings")
        log.warning("first")
        use_log_switches(LogSwitches(warning=False))
        log.warning("second")
        log.error("third")

        assert [line.text for line in found.after(0)] == ["first", "third"]
    finally:
        for handler in [each for each in root.handlers if each not in before]:
            root.removeHandler(handler)
        root.setLevel(level)


def test_process_without_a_page_keeps_nothing():
    assert kept_lines() is None


def sent(*lines, lost_count=0):
    return SentLines(77, list(lines), lost_count)


def printed(text, model="scale", ids=()):
    return SentLine(1.0, logging.INFO, "stdout", text, model, list(ids))


def test_ring_keeps_lines_of_other_processes(ring):
    failure = SentLine(2.0, logging.ERROR, "a.py:3", "failed", "scale", ["x"], "Traceback of it")
    ring.keep_sent(sent(printed("hello"), failure))

    first, second = ring.after(0)
    assert (first.level, first.place, first.text) == ("INFO", "stdout", "hello")
    assert (first.model, first.process, first.time) == ("scale", 77, 1.0)
    assert (second.level, second.text) == ("ERROR", "failed\nTraceback of it")
    assert second.request_ids == ["x"]


def test_ring_tells_how_many_lines_were_lost(ring):
    ring.keep_sent(sent(printed("after"), lost_count=12))

    assert [line.text for line in ring.after(0)] == [
        "12 lines of process 77 were lost here",
        "after",
    ]


def test_lines_are_filtered_by_level_model_and_text(ring, log):
    log.info("loading 'scale'")
    log.error("something else")
    ring.keep_sent(sent(printed("one", ids=["order-17"]), printed("two", model="other")))

    def texts(**wanted):
        return [line.text for line in ring.after(0, LineFilter(**wanted))]

    assert texts(level="WARNING") == ["something else"]
    assert texts(model="scale") == ["loading 'scale'", "one"]
    assert texts(text="ORDER-17") == ["one"]
    assert texts(text="T", model="other") == ["two"]
    assert texts(level="unknown", text="stdout") == ["one", "two"]


def test_ring_keeps_information_that_the_log_leaves_out():
    root = logging.getLogger()
    level, before = root.level, list(root.handlers)
    try:
        keep_lines(LogRing(), LogSwitches(info=False))
        use_log_switches(LogSwitches(info=False))
        logging.getLogger("tests.log_ring.settings").info("started")

        assert [line.text for line in kept_lines().after(0)] == ["started"]
    finally:
        for handler in [each for each in root.handlers if each not in before]:
            root.removeHandler(handler)
        root.setLevel(level)
