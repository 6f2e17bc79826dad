# SPDX-License-Identifier: Apache-2.0
"""Texts that are cut at stop strings, in whatever pieces they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.protocol.openai.answers import StopCutter

LETTERS = "ab\n"
stop_strings = st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=4)
pieces_of_text = st.lists(st.text(LETTERS, max_size=5), max_size=8)


def cut(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    cutter = StopCutter(stops)
    passed = []
    for piece in pieces:
        text, is_over = cutter.feed(piece)
        passed.append(text)
        if is_over:
            return passed, True
    return [*passed, cutter.finish()], False


@pytest.mark.parametrize(
    "stops, pieces, passed, is_over",
    [
        (["END"], ["one ", "E", "N", "D two"], ["one ", "", "", ""], True),
        (["END"], ["one E", "N", "one"], ["one ", "", "ENone", ""], False),
        (["END"], ["E", "EN", "D"], ["", "E", ""], True),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""], True),
        (["abc", "b"], ["ab", "c"], ["a"], True),
        (["abc", "bc"], ["ab", "c"], ["", ""], True),
        (["x"], ["abc"], ["abc", ""], False),
    ],
)
def test_text_ends_before_the_stop_string_that_is_complete_first(stops, pieces, passed, is_over):
    assert cut(stops, pieces) == (passed, is_over)


@given(stop_strings, pieces_of_text)
def test_pieces_do_not_matter(stops, pieces):
    whole, was_over = cut(stops, ["".join(pieces)])
    letters, is_over = cut(stops, list("".join(pieces)))
    passed, ended = cut(stops, pieces)

    assert "".join(passed) == "".join(letters) == "".join(whole)
    assert ended == is_over == was_over


@given(stop_strings, pieces_of_text)
def test_what_is_passed_on_is_the_longest_text_without_a_stop_string(stops, pieces):
    text = "".join(pieces)
    passed, is_over = cut(stops, pieces)
    end = "".join(passed)

    assert text.startswith(end)
    assert not any(stop in end for stop in stops)
    assert is_over == any(stop in text for stop in stops)
    if is_over:
        assert text[len(end) :].startswith(tuple(stops))


@given(stop_strings, pieces_of_text)
def test_no_more_is_held_back_than_might_become_a_stop_string(stops, pieces):
    cutter = StopCutter(stops)
    text = passed = ""
    for piece in pieces:
        now, is_over = cutter.feed(piece)
        text, passed = text + piece, passed + now
        if is_over:
            return
        held = text[len(passed) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
