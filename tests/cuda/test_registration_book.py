# SPDX-License-Identifier: Apache-2.0
"""Which segments are registered with CUDA's driver, decided without a driver."""

from __future__ import annotations

import pytest

from pytriton.runtime.cuda.registration import RegistrationBook, RegistrationCounts, SegmentState


def book_with(*sizes, limit=100):
    book = RegistrationBook(limit)
    for number, size in enumerate(sizes, 1):
        book.add(number, size)
    return book


def test_book_without_segments_registers_none():
    assert book_with().next_waiting() is None


def test_segments_are_registered_in_order_and_once():
    book = book_with(10, 20)

    assert book.next_waiting() == 1
    book.settle(1, SegmentState.REGISTERED)
    assert book.next_waiting() == 2
    book.settle(2, SegmentState.REGISTERED)
    assert book.next_waiting() is None
    assert book.counts() == RegistrationCounts(0, 2, 0, 0, 30)


def test_segment_beyond_the_limit_waits_for_room():
    book = book_with(60, 60, 30)
    book.settle(1, SegmentState.REGISTERED)

    assert book.next_waiting() == 3
    book.settle(3, SegmentState.REGISTERED)
    assert book.next_waiting() is None
    assert book.remove(1)
    assert book.next_waiting() == 2


def test_only_what_was_registered_here_is_unregistered():
    book = book_with(10, 10, 10, 10)
    book.settle(1, SegmentState.REGISTERED)
    book.settle(2, SegmentState.FOREIGN)
    book.settle(3, SegmentState.REFUSED)

    assert book.counts() == RegistrationCounts(1, 1, 1, 1, 10)
    assert [book.remove(number) for number in (1, 2, 3, 4)] == [True, False, False, False]
    assert book.counts() == RegistrationCounts(0, 0, 0, 0, 0)


def test_unknown_segment_needs_nothing():
    assert not book_with().remove(7)


def test_segment_is_not_registered_twice():
    book = book_with(10)
    book.settle(1, SegmentState.REGISTERED)

    with pytest.raises(AssertionError, match="cannot become"):
        book.settle(1, SegmentState.REGISTERED)
    with pytest.raises(AssertionError, match="mapped already"):
        book.add(1, 10)
