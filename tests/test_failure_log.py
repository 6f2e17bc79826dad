# SPDX-License-Identifier: Apache-2.0
"""One whole traceback for each place that fails, and counts of what repeats."""

from __future__ import annotations

import threading

import pytest

from pytriton.base import failure_log
from pytriton.base.failure_log import FailureLog, RepeatedFailures
from tests.e2e.waiting import DEADLINE_S


def raised(file, line, error):
    """Returns an exception that this line of a file has raised."""
    text = "\n" * (line - 1) + "def scale(error): raise error"
    names = {}
    exec(compile(text, file, "exec"), names)  # the text is the test's own
    with pytest.raises(type(error)) as caught:
        names["scale"](error)
    error = caught.value
    return error.with_traceback(error.__traceback__.tb_next)


def too_small(number=0, line=12):
    return raised("/models/scale.py", line, ValueError(f"{number} is too small"))


def test_first_failure_of_a_place_is_written_in_full():
    error = too_small()
    failure = RepeatedFailures().add("model 'scale'", error, 0.0)

    assert failure.error is error
    assert failure.text == "model 'scale': ValueError: 0 is too small at scale.py:12 in scale"


def test_repeated_failures_become_one_line_after_a_period():
    repeated = RepeatedFailures()
    written = [repeated.add("model 'scale'", too_small(n), n / 10) for n in range(38)]

    assert [each is None for each in written] == [False] + [True] * 37
    assert repeated.due(9.9) == []
    assert repeated.next_s() == 10.0
    (line,) = repeated.due(10.0)
    assert line.error is None
    assert line.text == (
        "model 'scale': ValueError: 37 is too small at scale.py:12 in scale "
        "(37 more times in the last 10 s)"
    )
    assert repeated.due(30.0) == []
    assert repeated.next_s() is None


def test_other_lines_classes_and_models_are_other_places():
    repeated = RepeatedFailures()
    errors = [too_small(), too_small(line=13), raised("/models/scale.py", 12, KeyError("a"))]
    written = [repeated.add("model 'scale'", error, 0.0) for error in errors]
    other = repeated.add("model 'other'", too_small(), 0.0)

    assert None not in [*written, other]


def test_failure_after_a_while_is_told_at_once():
    repeated = RepeatedFailures()
    repeated.add("model 'scale'", too_small(), 0.0)

    assert repeated.add("model 'scale'", too_small(), 60.0) is None
    (line,) = repeated.due(60.0)
    assert line.text.endswith("(1 more time in the last 60 s)")


def test_failure_after_a_long_quiet_time_is_written_in_full_again():
    repeated = RepeatedFailures()
    repeated.add("model 'scale'", too_small(), 0.0)

    assert repeated.add("model 'scale'", too_small(), failure_log.QUIET_S) is not None


def test_failures_without_a_user_frame_are_told_apart_by_their_words_without_numbers():
    repeated = RepeatedFailures()

    assert repeated.add("model 'm'", ValueError("got 3 rows"), 0.0) is not None
    assert repeated.add("model 'm'", ValueError("got 4 rows"), 0.0) is None
    assert repeated.add("model 'm'", ValueError("got 4 columns"), 0.0) is not None


def test_number_of_places_is_bounded_and_no_count_is_lost():
    repeated = RepeatedFailures()
    for _ in range(3):
        repeated.add("model 'first'", too_small(), 0.0)
    for number in range(failure_log.MAX_PLACES):
        repeated.add(f"model '{number}'", too_small(), 1.0)

    (line,) = repeated.due(1.0)
    assert line.text.startswith("model 'first'")
    assert "(2 more times" in line.text


def test_failure_whose_text_cannot_be_made_is_written():
    class SilentError(Exception):
        def __str__(self):
            raise RuntimeError

    text = RepeatedFailures().add("model 'm'", SilentError(), 0.0).text

    assert text == "model 'm': SilentError: <its text could not be created>"


def test_log_writes_a_count_that_nothing_follows():
    written, has_count = [], threading.Event()

    def write(failure):
        written.append(failure)
        if failure.error is None:
            has_count.set()

    now = [0.0]
    log = FailureLog(write, lambda: now[0])
    log.add("model 'scale'", too_small())
    now[0] = 9.99
    log.add("model 'scale'", too_small())
    now[0] = 10.0

    assert has_count.wait(DEADLINE_S)
    assert [each.error is None for each in written] == [False, True]
    log.close()


def test_log_writes_all_counts_when_it_is_closed():
    written = []
    log = FailureLog(written.append, lambda: 0.0)
    for _ in range(3):
        log.add("model 'scale'", too_small())
    log.close()
    log.close()

    assert [each.error is None for each in written] == [False, True]
    assert "(2 more times" in written[1].text


def test_closed_log_still_writes():
    written = []
    log = FailureLog(written.append, lambda: 0.0)
    log.close()
    log.add("model 'scale'", too_small())
    log.add("model 'scale'", too_small())
    log.close()

    assert len(written) == 2


def test_counts_are_written_at_the_end_if_there_is_no_thread_for_them(monkeypatch):
    monkeypatch.setattr(failure_log, "start_thread", lambda target, name: None)
    written = []
    log = FailureLog(written.append)
    for number in range(3):
        log.add("model 'scale'", too_small(number))

    log.close()

    assert [each.error is None for each in written] == [False, True]
    assert "2 more times" in written[1].text
