# SPDX-License-Identifier: Apache-2.0
"""Results leave in the order of their tickets, each exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.serving.engine.delivery import OrderedRelease


def test_result_waits_for_all_earlier_ones():
    release: OrderedRelease[str] = OrderedRelease()
    first, second, third = (release.take_ticket() for _ in range(3))

    assert release.complete(third, "c") == []
    assert release.complete(second, "b") == []
    assert len(release) == 2
    assert release.complete(first, "a") == ["a", "b", "c"]
    assert len(release) == 0


def test_skipped_ticket_holds_nobody_back():
    release: OrderedRelease[str] = OrderedRelease()
    first, second, third = (release.take_ticket() for _ in range(3))

    assert release.complete(third, "c") == []
    assert release.skip(second) == []
    assert release.skip(first) == ["c"]


def test_result_may_be_none():
    release: OrderedRelease[None] = OrderedRelease()
    first, second = release.take_ticket(), release.take_ticket()

    assert release.complete(second, None) == []
    assert release.complete(first, None) == [None, None]


def test_ticket_is_returned_once_only():
    release: OrderedRelease[str] = OrderedRelease()
    first, second = release.take_ticket(), release.take_ticket()
    release.complete(second, "b")

    with pytest.raises(ValueError, match=r"expected a ticket from 0 to 1 .* got 1"):
        release.complete(second, "b")
    release.complete(first, "a")
    with pytest.raises(ValueError, match="got 0"):
        release.skip(first)


def test_ticket_that_was_never_issued_is_refused():
    with pytest.raises(ValueError, match="got 3"):
        OrderedRelease[str]().complete(3, "x")


def test_repr_shows_the_counts():
    release: OrderedRelease[str] = OrderedRelease()
    for _ in range(3):
        release.take_ticket()
    release.complete(1, "b")

    assert repr(release) == "<OrderedRelease 2 running, 1 finished and waiting>"


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_any_order_of_completion_is_released_in_order(order, skipped):
    release: OrderedRelease[int] = OrderedRelease()
    for _ in order:
        release.take_ticket()
    released = []
    for count, ticket in enumerate(order, 1):
        released += release.skip(ticket) if ticket in skipped else release.complete(ticket, ticket)
        returned = set(order[:count])
        first_open = next(ticket for ticket in range(13) if ticket not in returned)
        assert released == [ticket for ticket in range(first_open) if ticket not in skipped]
